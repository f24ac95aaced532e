"""Time of a step from the architecture of the network and the speed of the hardware.

Source
    Qi, Sparks, Talwalkar, Paleo: A Performance Model for Deep Neural Networks, ICLR 2017;
    communication schemes and FLOPs checked against the authors' program.
Equations
    A pass through a layer takes

        bytes read / B_m + FLOPs / (peak x percent of peak) + bytes written / B_m

    with the memory bandwidth B_m: forward once; backward once for the gradient of the weights and
    once for that of the input, which the network's first layer does without, each with the FLOPs
    of the forward pass. The update reads parameters and gradients and writes parameters. n nodes
    exchange G bytes over links of B bytes/s in

        2 (n - 1) G / B          one to all
        2 ceil(log2 n) G / B     tree
        ceil(log2 n) G / B       butterfly
        G / B                    butterfly mixing (some nodes only)

    and n workers make n steps in the time of computation, update and exchange.
Inputs
    The network's table of layers (`asgd_model.baselines.networks`), found by the name and number
    of parameters of the profile; its batch size; links of the cluster; a `Device` if its numbers
    are known.
Sees
    With a `Device`, nothing measured. Without one, the profile of one worker gives the worker's
    FLOPs per second, that is peak times percent of peak with memory accesses in it, and the
    server's time of an update.
Limits
    Calibrated so, the time of computation is that of the profile and only the model of
    communication is put to the test. No overlap, all workers exchange at once. One to all has a
    parameter server for the one, so that n - 1 is the number of workers, and P servers
    count as one with P times the rate; a tree or butterfly is among the workers.

Examples
--------
1 GB over links of 10 Gbit/s, 1.25 GB/s, between eight nodes:

>>> for scheme in ("one to all", "tree", "butterfly", "butterfly mixing"):
...     print(scheme, round(communication_time(scheme, nodes=8, size=1e9, rate=1.25e9), 3))
one to all 11.2
tree 4.8
butterfly 2.4
butterfly mixing 0.8
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from asgd_model.baselines.architectures import Architecture, Layer
from asgd_model.baselines.networks import architecture
from asgd_model.baselines.phases import BITS, receiving_rate, sending_rate, usable_cores
from asgd_model.cluster import Cluster, Node
from asgd_model.errors import InputError
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import SERVER, WORKER, Profile

if TYPE_CHECKING:
    import pandas as pd

Scheme = Literal["one to all", "tree", "butterfly", "butterfly mixing"]


@dataclass(frozen=True)
class Device:
    """What computes.

    Attributes
    ----------
    peak : float
        FLOP/s that the hardware could do.
    percent_of_peak : float
        Share of the peak that software achieves, 0 to 1.
    memory_bandwidth : float
        Bytes/s that memory delivers; infinite if the percent of peak accounts for it.
    """

    peak: float
    percent_of_peak: float = 1.0
    memory_bandwidth: float = math.inf

    def __post_init__(self) -> None:
        for name in ("peak", "percent_of_peak", "memory_bandwidth"):
            if not getattr(self, name) > 0:
                raise InputError("Device", getattr(self, name), "a number above 0", field=name)

    def time(self, flops: float, moved: float) -> float:
        """Seconds for some FLOPs and some bytes read and written."""
        return flops / (self.peak * self.percent_of_peak) + moved / self.memory_bandwidth


def predict(
    profile: Profile,
    clusters: Sequence[Cluster],
    measured: pd.DataFrame | None = None,
    *,
    device: Device | None = None,
    scheme: Scheme = "one to all",
) -> pd.DataFrame:
    """Throughput from the architecture; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Gives the network's name and number of parameters and the batch size, and calibrates the
        hardware's speed if `device` does not say it.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not looked at.
    device : Device, optional
        Each worker and server; then the cores of the cluster's nodes are not looked at.
    scheme : str
        How gradients and parameters are exchanged; see the module's equations.

    Raises
    ------
    InputError
        If the network is not known, or there is no such scheme.
    """
    known = profile.metadata
    network = architecture(known.dnn, known.parameters)
    size = sum(layer.weight_bytes for layer in network.layers)
    throughput = []
    for cluster in clusters:
        if device is None:
            slowest = min(cluster.workers, key=usable_cores)
            worker = calibrated_device(network, profile, slowest)
            update = profile.mean_work(SERVER) / sum(map(usable_cores, cluster.servers))
        else:
            worker = device
            update = update_time(network, device)
        times = layer_times(network, known.batch_size, worker)
        computation = float(times[["forward_s", "backward_s"]].to_numpy().sum())
        exchange = _exchange_time(scheme, size, cluster)
        throughput.append(len(cluster.workers) / (computation + exchange + update))
    sees = ONE_WORKER if device is None else "architecture and hardware"
    return prediction(clusters, throughput, sees)


def calibrated_device(network: Architecture, profile: Profile, node: Node) -> Device:
    """A device on which a step takes as long as the profiled work does on a node."""
    flops = profile.metadata.batch_size * sum(
        passes * layer.flops for layer, passes in _passes(network)
    )
    return Device(peak=flops * usable_cores(node) / profile.mean_work(WORKER))


def layer_times(network: Architecture, batch_size: int, device: Device) -> pd.DataFrame:
    """Seconds of each layer for a batch.

    Parameters
    ----------
    network : Architecture
        Its layers.
    batch_size : int
        Examples.
    device : Device
        What computes.

    Returns
    -------
    DataFrame
        One row per layer; columns `name`, `forward_s`, `backward_s`.

    Examples
    --------
    VGG-16's second convolution makes 3.7 GFLOP per example; with 1 GFLOP/s and infinitely fast
    memory it takes 3.7 s forward and twice as long backward.

    >>> times = layer_times(architecture("vgg-16"), 1, Device(peak=1e9))
    >>> times.loc[1, ["forward_s", "backward_s"]].astype(float).round(2).tolist()
    [3.7, 7.4]
    """
    import pandas as pd

    rows = []
    for layer, passes in _passes(network):
        data = batch_size * (layer.input_bytes + layer.output_bytes)
        time = device.time(batch_size * layer.flops, data + layer.weight_bytes)
        rows.append((layer.name, time, (passes - 1) * time))
    return pd.DataFrame(rows, columns=["name", "forward_s", "backward_s"])


def update_time(network: Architecture, device: Device) -> float:
    """Seconds in which all parameters are updated: a multiplication and a subtraction each."""
    size = sum(layer.weight_bytes for layer in network.layers)
    return device.time(2 * network.parameters, 3 * size)


def communication_time(scheme: Scheme, nodes: int, size: float, rate: float) -> float:
    """Seconds in which nodes exchange tensors.

    Parameters
    ----------
    scheme : str
        See the module's equations.
    nodes : int
        Number of nodes, the one of "one to all" among them.
    size : float
        Bytes of all tensors.
    rate : float
        Bytes/s of a link.

    Raises
    ------
    InputError
        If there is no such scheme.
    """
    height = math.ceil(math.log2(nodes))
    rounds = {
        "one to all": 2 * (nodes - 1),
        "tree": 2 * height,
        "butterfly": height,
        "butterfly mixing": 1,
    }
    if scheme not in rounds:
        raise InputError("paleo", scheme, f"one of {', '.join(rounds)}", field="scheme")
    return rounds[scheme] * size / rate


def _exchange_time(scheme: Scheme, size: float, cluster: Cluster) -> float:
    """Seconds of the exchange on a cluster."""
    workers, servers = cluster.workers, cluster.servers
    link = min(min(worker.uplink, worker.downlink) for worker in workers) / BITS
    if scheme != "one to all":
        return communication_time(scheme, len(workers), size, link)
    at_servers = min(sending_rate(servers), receiving_rate(servers))
    return max(
        communication_time(scheme, len(workers) + 1, size, at_servers),
        communication_time(scheme, 2, size, link),
    )


def _passes(network: Architecture) -> list[tuple[Layer, int]]:
    """Each layer and how often a step passes through it.

    Forward, for the gradient of the input, and for the gradient of the weights if there are any;
    the gradient of the image is not needed.
    """
    return [
        (layer, 1 + (layer.weights > 0) + (layer is not network.layers[0]))
        for layer in network.layers
    ]
