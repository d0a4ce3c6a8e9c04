"""A multipart/form-data form whose parts are an adapter's files."""

from contextlib import ExitStack
from pathlib import Path

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.adapters.unsupported_weights import refuse_unsupported_weights
from punica_serve.errors import InvalidRequest, TooLarge
from punica_serve.store.adapter_files import ADAPTER_FILES
from punica_serve.store.file_sink import FileSink
from punica_serve.store.sinks import ArchiveSink, Sink

_MAX_PARTS = 32
_WHAT_TO_SEND = f"send one archive, or {CONFIG_NAME} and {WEIGHTS_NAME} under their names"


class FormSink:
    """Takes the parts that are files and ignores others, such as text fields."""

    def __init__(self, boundary: bytes, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._archive: Sink | None = None
        self._files: dict[str, Sink] = {}
        #: The current part: its headers so far, and where its data goes.
        self._header = self._value = b""
        self._disposition = b""
        self._target: Sink | None = None
        self._num_parts = 0
        self._is_complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._take_header,
                    "on_header_value": self._take_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._choose_target,
                    "on_part_data": self._take_data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _unreadable(error) from error

    def write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _unreadable(error) from error

    def finish(self) -> None:
        if not self._is_complete:
            raise InvalidRequest("the form is truncated: its last boundary is missing", param="file")
        if not self._archive and not self._files:
            raise InvalidRequest(f"the form has no files; {_WHAT_TO_SEND}", param="file")
        lacking = [name for name in (CONFIG_NAME, WEIGHTS_NAME) if name not in self._files]
        if not self._archive and lacking:
            raise InvalidRequest(f"the form lacks {lacking[0]}; {_WHAT_TO_SEND}", param="file")
        for sink in self._sinks():
            sink.finish()

    def close(self) -> None:
        self._parser.callbacks = {}  # these refer to this sink: a cycle that only the garbage collector would free
        with ExitStack() as closing:  # on a full disk one may fail to close, and the next one must still be closed
            for sink in self._sinks():
                closing.callback(sink.close)

    def _sinks(self) -> list[Sink]:
        return [*self._files.values(), *([self._archive] if self._archive else [])]

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise TooLarge(f"the form has more than {_MAX_PARTS} parts", param="file")
        self._disposition = b""

    def _take_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _choose_target(self) -> None:
        _, parameters = parse_options_header(self._disposition)
        path = parameters.get(b"filename", b"").decode("utf-8", "replace").replace("\\", "/")
        name = path.rpartition("/")[2]
        self._target = self._open(name) if name else None

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._target:
            self._target.write(data[start:end])

    def _end(self) -> None:
        self._is_complete = True

    def _open(self, name: str) -> Sink:
        """The sink for the file of that name."""
        refuse_unsupported_weights([name])
        is_known = name in ADAPTER_FILES
        if self._archive or name in self._files or (self._files and not is_known):
            raise InvalidRequest(f"the form holds `{name[:200]}` beside other files; {_WHAT_TO_SEND}", param="file")
        if is_known:
            self._files[name] = FileSink(self._folder / name, self._max_bytes)
            return self._files[name]
        self._archive = ArchiveSink(self._folder, self._max_bytes)
        return self._archive


def _unreadable(error: FormParserError) -> InvalidRequest:
    return InvalidRequest(f"the form can't be read: {error}", param="file")
