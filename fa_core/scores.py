"""What happens to scores between q kᵀ and the softmax, for one tile of them, and back: in plain PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fa_core.band import Band

NEG_INF = float("-inf")


class Scores(NamedTuple):
    """The scores of one tile, (B, H, rows, cols)."""

    capped: torch.Tensor  # scaled, and drawn below the cap where there is one
    final: torch.Tensor  # with everything added; -inf where the pair is hidden


class ScoreRule(NamedTuple):
    """How q kᵀ of n_q queries and n_k keys becomes what the softmax is given."""

    n_q: int
    n_k: int
    scale: float
    band: Band = Band()
    alibi_slopes: torch.Tensor | None = None  # (heads,) or (batch, heads)
    softcap: float | None = None
    bias: torch.Tensor | None = None  # (batch, heads, n_q, n_k), or 1 in any of these places

    @property
    def shift(self) -> int:
        """The key on the diagonal of query 0."""
        return self.band.shift(self.n_q, self.n_k)

    def keys_seen_by(self, rows: slice) -> tuple[int, int]:
        """The keys [first, end) that a tile's queries see between them; end <= first when none."""
        left, right, _ = self.band
        first = 0 if left is None else max(0, rows.start + self.shift - left)
        end = self.n_k if right is None else min(self.n_k, rows.stop + self.shift + right)
        return first, end

    def queries_that_see(self, cols: slice) -> tuple[int, int]:
        """The queries [first, end) that see a tile's keys between them; end <= first when none."""
        left, right, _ = self.band
        first = 0 if right is None else max(0, cols.start - self.shift - right)
        end = self.n_q if left is None else min(self.n_q, cols.stop - self.shift + left)
        return first, end

    def see_one_key(self, device: torch.device) -> torch.Tensor:
        """Whether the band leaves a query one key, (n_q,)."""
        diagonal = torch.arange(self.n_q, device=device) + self.shift
        left, right, _ = self.band
        first = torch.zeros_like(diagonal) if left is None else (diagonal - left).clamp(min=0)
        last = torch.full_like(diagonal, self.n_k - 1)
        return first == (last if right is None else last.minimum(diagonal + right))

    def tile(self, products: torch.Tensor, rows: slice, cols: slice) -> Scores:
        """The scores of a tile of q kᵀ, (B, H, rows, cols), in the dtype of `products`."""
        capped = products * self.scale
        if self.softcap is not None:
            capped = self.softcap * torch.tanh(capped / self.softcap)
        final = capped
        i = torch.arange(rows.start, rows.stop, device=products.device)[:, None]
        j = torch.arange(cols.start, cols.stop, device=products.device)
        offset = j - i - self.shift  # of a key from the diagonal
        if self.alibi_slopes is not None:
            final = final - self.alibi_slopes.to(final.dtype)[..., None, None] * offset.abs()
        if self.bias is not None:
            final = final + self.of_bias(self.bias, rows, cols)
        for side, beyond in ((self.band.left, -offset), (self.band.right, offset)):
            if side is not None:
                final = final.masked_fill(beyond > side, NEG_INF)
        return Scores(capped, final)

    def of_bias(self, bias: torch.Tensor, rows: slice, cols: slice) -> torch.Tensor:
        """The view of a bias, or of its gradient, that a tile meets; broadcast where the bias is."""
        one = slice(None)
        return bias[:, :, rows if bias.shape[2] > 1 else one, cols if bias.shape[3] > 1 else one]

    def dproducts(self, dscores: torch.Tensor, capped: torch.Tensor) -> torch.Tensor:
        """The gradient of q kᵀ from that of the final scores; a hidden pair's is 0 in both."""
        if self.softcap is not None:
            dscores = dscores * (1 - (capped / self.softcap) ** 2)
        return dscores * self.scale
