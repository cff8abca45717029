"""Finds where characters end in the chunks of a stock vLLM, because a cut may fall only there.

Our nodes hold text back until all ids so far form whole characters. vLLM holds back per token, and when its server
falls behind (or with `--stream-interval`) it joins tokens into one chunk: the chunk's text may end before its ids do.
"""

from types import TracebackType
from typing import Self

import msgspec

from control.domain.topology import Node
from engine_agents.gateway.node_client import NodeClient
from engine_agents.gateway.node_errors import NodeError
from engine_agents.gateway.node_replies import Chunk
from engine_agents.gateway.node_stream import NodeStream, Taker

_INCOMPLETE = "\ufffd"


class CharacterEnds:
    """One stream, as far as its characters are concerned. `whole_ids` is shared by all streams of a model.

    vLLM emits the text of a token as soon as what is pending decodes without a broken end. So a chunk of one token
    with text ends on a character, and a token that gave unbroken text where a character had just ended is made of
    whole characters wherever it stands.
    """

    def __init__(self, whole_ids: set[int]) -> None:
        self._whole_ids = whole_ids
        self._ids: list[int] = []
        self._text = ""

    def follow(self, token_ids: tuple[int, ...], text: str) -> bool | None:
        """Whether the ids so far end on a character; None: only a decoder can tell, see `questions`."""
        at_end = not self._ids
        self._ids.extend(token_ids)
        self._text += text
        if not text:
            return False
        if len(token_ids) > 1 and not (at_end and self._whole_ids.issuperset(token_ids)):
            return None
        if at_end and _INCOMPLETE not in text:
            self._whole_ids.update(token_ids)
        self.found()
        return True

    def questions(self, token_ids: tuple[int, ...], text: str) -> list[tuple[tuple[int, ...], str]]:
        """Ids and texts; where one decodes to the other, nothing is pending behind it.

        First all since the last known end, then the chunk alone: special tokens before it have no text here, but
        have one where they are decoded.
        """
        asked = [(tuple(self._ids), self._text), (token_ids, text)]
        return asked if len(token_ids) < len(self._ids) else asked[:1]

    def found(self) -> None:
        """The ids so far end on a character."""
        self._ids.clear()
        self._text = ""


def is_text_of(decoded: str, text: str) -> bool:
    """Whether a decoder's text is a stream's; decoders drop a space in front."""
    return decoded == text or " " + decoded == text


class CheckedStream:
    """A vLLM stream whose chunks say whether they end on a character; asks the node where the ids do not tell."""

    def __init__(self, stream: NodeStream, client: NodeClient, node: Node, model: str, whole_ids: set[int]) -> None:
        self._stream = stream
        self._client = client
        self._node = node
        self._model = model
        self._ends = CharacterEnds(whole_ids)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, traceback)

    async def run(self, take: Taker) -> bool:
        """As `NodeStream.run`, each chunk with its `is_whole` set; one at a time, because a question may be asked."""
        while True:
            is_over = await self._stream.run(self._keep)
            if is_over:
                return True
            if not take(await self._checked(self._kept)):
                return False

    def _keep(self, chunk: Chunk) -> bool:
        self._kept = chunk
        return False

    async def _checked(self, chunk: Chunk) -> Chunk:
        if not chunk.choices or await self._is_whole(chunk):
            return chunk
        return msgspec.structs.replace(chunk, is_whole=False)

    async def _is_whole(self, chunk: Chunk) -> bool:
        choice = chunk.choices[0]
        token_ids = choice.token_ids or ()
        verdict = self._ends.follow(token_ids, choice.text)
        if verdict is not None:
            return verdict
        for ids, text in self._ends.questions(token_ids, choice.text):
            try:
                decoded = await self._client.detokenize(self._node, self._model, ids)
            except NodeError:
                return False  # a later chunk will tell
            if is_text_of(decoded, text):
                self._ends.found()
                return True
            if decoded.endswith(_INCOMPLETE):
                return False
        return False
