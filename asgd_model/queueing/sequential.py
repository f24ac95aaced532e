"""A training job as the queueing model without overlap takes it to be."""

from __future__ import annotations

import numpy as np

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Calibration, Profile
from asgd_model.queueing.asgd import network


def sequential(profile: Profile, steps: int = 400) -> Profile:
    """The same demands in four phases that follow each other, with exponential CPU work.

    A step receives all parameters, computes, sends all gradients, and the server updates. Its
    simulation fulfils the assumptions of `asgd_model.queueing.asgd.network`, whose exact solution
    it must therefore agree with. CPU costs of communication are part of the work. The sizes of
    transfers stay constant: with processor sharing only their mean matters (Baskett, Chandy,
    Muntz and Palacios 1975, types 2 and 3).

    Parameters
    ----------
    profile : Profile
        A job on one server.
    steps : int
        Number of steps with different work: quantiles of the exponential distribution, scaled to
        the job's mean.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If the job has several servers or `steps` is below 1.
    """
    if profile.num_servers != 1:
        raise InputError("sequential", profile.num_servers, "a job on one server", field="servers")
    if steps < 1:
        raise InputError("sequential", steps, "at least 1", field="steps")
    cluster = Cluster.like(profile)
    send, receive, update, compute = network(profile, cluster).demands[:, 0]
    exponential = -np.log1p(-(np.arange(steps) + 0.5) / steps)
    exponential /= exponential.mean()
    unrelated = np.random.default_rng(0).permutation(exponential)
    worker_cores, server_cores = (
        min(nodes[0].cores, 1.0) for nodes in (cluster.workers, cluster.servers)
    )
    seconds = np.empty((steps, 4))
    seconds[:, 0], seconds[:, 2] = send, receive
    seconds[:, 1], seconds[:, 3] = compute * exponential, update * unrelated
    end = np.cumsum(seconds, axis=1)
    bytes_per_s = profile.metadata.link_rate / 8.0
    names = ("receive parameters", "compute", "send gradients", "update")
    metadata = profile.metadata.model_copy(
        update={"calibration": Calibration(), "stream_window": None}
    )
    return Profile(
        names=names,
        kinds=("RecvTensor", "Compute", "RecvTensor", "Update"),
        resources=np.array([DOWNLINK, WORKER, UPLINK, SERVER], dtype=np.int8),
        servers=np.array([0, -1, 0, 0], dtype=np.int32),
        sizes=np.rint(bytes_per_s * np.array([send, 0.0, receive, 0.0])).astype(np.int64),
        dependencies=tuple(np.arange(max(op - 1, 0), op, dtype=np.int32) for op in range(4)),
        work=seconds * [0.0, worker_cores, 0.0, server_cores],
        start=end - seconds,
        end=end,
        metadata=metadata,
    )
