"""A process that works on chunks of pairs: the first message describes the job, every other one is a chunk.

    python -m saccade.data.workers.worker

Started by `parallel.py`, which talks to it over its standard input and output. It ends when its input does, so it never
outlives the process that started it.
"""

from __future__ import annotations

import os
import sys
from typing import IO

from saccade.data.workers.jobs import JOBS
from saccade.data.workers.messages import Frame, chunk_of_frame, read_frame, write_frame
from saccade.errors import SaccadeError


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer every chunk; what the user can mend is an answer too."""
    description = read_frame(requests)
    if description is None:
        return
    job = JOBS[description.values["job"]](description)
    while (request := read_frame(requests)) is not None:
        try:
            answer = job.do(chunk_of_frame(request))
        except SaccadeError as error:
            answer = Frame({"error": [error.what, error.where, error.do]})
        write_frame(answers, answer)


def main() -> None:
    """Speak over the standard streams; whatever else is printed goes to the standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work(sys.stdin.buffer, answers)
    except (BrokenPipeError, EOFError):  # whoever asked is gone
        os._exit(1)  # the interpreter would try to flush what nobody reads


if __name__ == "__main__":
    main()
