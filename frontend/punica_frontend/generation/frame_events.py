"""A request's frames as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from punica_frontend.generation.answers import Frame, failed_frame, token_frame
from punica_frontend.generation.choices import stream_all
from punica_frontend.generation.direct_output import DirectOutput
from punica_frontend.generation.event_stream import EventStream, event_line
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.request_plan import RequestPlan


class FrameEvents:
    """The events of one request, which runs as soon as they are sent."""

    def __init__(self, generator: Generator, plan: RequestPlan) -> None:
        self._generator = generator
        self._plan = plan
        #: Generated tokens in the events so far.
        self._num_tokens = 0

    def response(self) -> EventStream[Frame]:
        direct = DirectOutput({0: self._encode})
        return EventStream(self._frames(direct), self._failed, direct=direct)

    async def _frames(self, direct: DirectOutput) -> AsyncGenerator[Frame, None]:
        async with aclosing(stream_all(self._generator, (self._plan,), direct)) as frames:
            async for _, frame in frames:
                self._num_tokens = frame.index + len(frame.token_ids)
                yield frame

    def _encode(self, token_id: int, text: str, num_tokens: int) -> bytes:
        self._num_tokens = num_tokens
        return event_line(token_frame(self._plan.answer_id, token_id, text, num_tokens))

    def _failed(self, error: Exception) -> Frame:
        return failed_frame(self._plan.answer_id, self._num_tokens, error)
