"""Kill a process repeatedly while it saves: no checkpoint may be incomplete, and no finished one may be lost.

    python tests/crash_safety/kill_saves.py --kills 200

The process saves checkpoints 1, 2, 3 … in which all numbers are the number of the checkpoint, and replaces a model
folder after each; it reports each one that is on disk. After each kill the newest intact checkpoint must be the last
reported one or a later one, all its numbers must be its own, and the model folder must be intact.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

WIDTH = 512  # checkpoints of several megabytes, so that writing takes some milliseconds
KEEP = 3


def build(step: int):
    """A model and an optimizer in which all numbers are `step`."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step)
            optimizer.state[parameter] = {
                "exp_avg": torch.full_like(parameter, step),
                "exp_avg_sq": torch.full_like(parameter, step),
                "step": torch.tensor(float(step)),
            }
    return model, optimizer


def save_repeatedly(folder: Path, first: int, report: int) -> None:
    """Save checkpoints from number `first` on, until this process is killed."""
    import torch

    from saccade.folder import atomic_folder, write_json
    from saccade.model_folder import save_tensors
    from saccade.training.checkpoints.background_saving import CheckpointSaver
    from saccade.training.checkpoints.checkpoint import TrainingState
    from saccade.training.loop import Progress

    torch.set_num_threads(1)
    with CheckpointSaver(folder / "checkpoints", keep=KEEP, every=1) as saver:
        step = first
        while True:
            model, optimizer = build(step)
            saver.save(model, optimizer, TrainingState(Progress(step=step)))
            with atomic_folder(folder / "model-best") as target:
                save_tensors(target / "model.safetensors", {"weight": torch.full((WIDTH, WIDTH), float(step))})
                write_json(target / "config.json", {"step": step})
            saver.wait()
            os.write(report, f"{step}\n".encode())
            step += 1


def inspect(folder: Path, reported: int) -> tuple[int, list[str]]:
    """The number of the newest intact checkpoint, and the faults that a kill has caused."""
    from saccade.folder import read_json, recover, verify
    from saccade.model_folder import load_tensors
    from saccade.training.checkpoints.checkpoint import find_newest_intact, list_checkpoints, load_checkpoint

    faults: list[str] = []
    found = find_newest_intact(folder / "checkpoints")
    faults += [f"damaged checkpoint under its final name: {path.name}: {fault}" for path, fault in found.damaged]
    step = 0
    if found.path is not None:
        model, optimizer = build(0)
        step = load_checkpoint(found.path, model, optimizer).progress.step
        numbers = [*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())]
        if not all(bool((number == step).all()) for number in numbers):
            faults.append(f"checkpoint {step} has other numbers")
        kept = len(list_checkpoints(folder / "checkpoints"))
        if kept < min(KEEP, reported):
            faults.append(f"only {kept} checkpoints are left")
    if step < reported:
        faults.append(f"checkpoint {reported} was on disk and is lost; the newest is {step}")
    best = folder / "model-best"
    recover(best)
    if reported:
        verify(best)
        kept = read_json(best / "config.json")["step"]
        if kept < reported or not bool((load_tensors(best / "model.safetensors")["weight"] == kept).all()):
            faults.append(f"the model folder is of save {kept}, not {reported}")
    return step, faults


def staging_folders(folder: Path) -> list[Path]:
    """Folders that are incomplete: written at the moment, or when the process was killed."""
    return [*folder.glob(".*"), *(folder / "checkpoints").glob(".*")]


def wait_for_writing(folder: Path, seconds: float = 5) -> None:
    """Wait until a folder is being written."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not staging_folders(folder):
        time.sleep(0.0005)


def main() -> int:
    """Kill and inspect until the number of kills is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import torch

    import saccade.training.checkpoints.background_saving  # noqa: F401  (imported before the first fork)

    torch.set_num_threads(1)  # a forked child must not wait for threads that it did not inherit
    chooser = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    reported = newest = while_writing = 0
    for number in range(options.kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_repeatedly(folder, newest + 1, writer)
            finally:
                os._exit(70)
        os.close(writer)
        with os.fdopen(reader) as lines:
            for _ in range(chooser.randrange(4)):  # saves that are not interrupted
                reported = int(lines.readline())
            wait_for_writing(folder)
            time.sleep(chooser.uniform(0.0, 0.03))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            reported = max([reported, *map(int, lines)])
        while_writing += bool(staging_folders(folder))
        newest, faults = inspect(folder, reported)
        if faults:
            print(f"after kill {number + 1}: {faults}; kept for inspection: {folder}")
            return 1
    print(
        f"{options.kills} kills, {while_writing} of them with an incomplete folder, {newest} checkpoints: "
        "none damaged, none lost"
    )
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
