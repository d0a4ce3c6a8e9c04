"""int32 words written on the host and copied to where the device's kernels look for them."""

import torch

from punica_serve.engine.step_pages import Int32s


class PinnedWords:
    """Words of the host in pinned memory (``host``) and as many on the device (``device``), at fixed addresses."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        self.host = torch.zeros(num_words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.device = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._words: Int32s = self.host.numpy()

    def write(self, words: Int32s) -> None:
        """Replaces the first words on the host. Their last copy must have ended. ValueError: too many words."""
        self._words[: len(words)] = words

    def send(self, words: Int32s) -> None:
        """Writes, and queues the copy of as many words to the device on the current stream."""
        self.write(words)
        self.queue(len(words))

    def queue(self, num_words: int | None = None) -> None:
        """Queues the copy of the first words, by default of all, to the device on the current stream."""
        self.device[:num_words].copy_(self.host[:num_words], non_blocking=True)
