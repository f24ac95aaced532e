"""The process of one node: a TensorFlow server, and on a worker the steps that it runs.

It speaks with the process that started it as `asgd_model.testbed.protocol` says, on standard
input and output. It ends when its standard input does, so no node outlives its run.
"""

from __future__ import annotations

import gzip
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import tensorflow.compat.v1 as tf
from pydantic import TypeAdapter

from asgd_model.baselines.networks import architecture
from asgd_model.files import write_bytes
from asgd_model.testbed import graphs
from asgd_model.testbed.protocol import Command, Initialize, Run, Save, Task, Training

_COMMANDS: TypeAdapter[Command] = TypeAdapter(Command)


def main() -> None:
    """Serve one node until standard input ends."""
    channel = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no message
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin, lines), daemon=True).start()
    tf.disable_v2_behavior()
    task = Task.model_validate_json(lines.get())
    server, config = _serve(task)
    worker = _Worker(task, server, config, channel) if task.role == "worker" else None
    _tell(channel, "ready", framework=f"TensorFlow {tf.version.VERSION}")
    while True:
        command = _COMMANDS.validate_json(lines.get())
        if worker is None:
            raise ValueError(f"a parameter server cannot {command.do}")
        worker.obey(command)
        _tell(channel, "done", did=command.do)


def _serve(task: Task) -> tuple[Any, Any]:
    """Start the node's TensorFlow server; returns it and the configuration of its sessions."""
    config = tf.ConfigProto(
        intra_op_parallelism_threads=task.limits.intra_op_threads,
        inter_op_parallelism_threads=task.limits.inter_op_threads,
        # Workers need not know of each other.
        device_filters=["/job:ps", f"/job:{task.role}/task:{task.index}"],
    )
    if not isinstance(task.job, Training):
        # Moving a tensor that nobody reads would be optimised away.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    server = tf.train.Server(task.cluster, job_name=task.role, task_index=task.index, config=config)
    return server, config


class _Worker:
    """Builds the graph of a job and runs its steps."""

    def __init__(self, task: Task, server: Any, config: Any, channel: TextIO) -> None:
        device = f"/job:worker/task:{task.index}"
        with tf.device(tf.train.replica_device_setter(cluster=task.cluster, worker_device=device)):
            if isinstance(task.job, Training):
                network = architecture(task.job.dnn)
                seed = task.job.seed + task.index
                training = graphs.training(network, task.job.batch_size, seed, task.job.policy)
                self._steps = [training]
            else:
                self._steps = [graphs.transfer(step, device) for step in task.job.steps]
        self._initialize = tf.global_variables_initializer()
        self._session = tf.Session(server.target, config=config)
        self._channel = channel
        self._traces: list[Any] = []

    def obey(self, command: Command) -> None:
        """Follow a command."""
        match command:
            case Initialize():
                self._session.run(self._initialize)
            case Run():
                self._run(command)
            case Save():
                self._save(command)

    def _run(self, command: Run) -> None:
        if command.graphs:
            self._traces.clear()
        time.sleep(max(0.0, command.at - time.monotonic()))
        for index in range(command.count):
            traced = command.trace_every > 0 and index % command.trace_every == 0
            options = metadata = None
            if traced:
                options = tf.RunOptions(
                    trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=command.graphs
                )
                metadata = tf.RunMetadata()
                self._traces.append(metadata)
            start = time.monotonic()
            self._session.run(self._steps[command.step], options=options, run_metadata=metadata)
            _tell(self._channel, "step", start=start, end=time.monotonic(), traced=traced)

    def _save(self, command: Save) -> None:
        kept = self._traces[command.skip :]
        if command.skip > 0:
            kept[0].partition_graphs.extend(self._traces[0].partition_graphs)
        for index, metadata in enumerate(kept):
            content = gzip.compress(metadata.SerializeToString(), mtime=0)
            write_bytes(Path(command.folder) / f"run_metadata_{index:02}.pb.gz", content)
        self._traces.clear()


def _tell(channel: TextIO, event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), file=channel, flush=True)


def _read(stream: TextIO, lines: queue.Queue[str]) -> None:
    """Pass lines on; end the process when there can be no more."""
    for line in stream:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
