"""Draws in proportion to weights that keep changing."""

import torch


class SumTree:
    """n weights at the leaves of a binary tree of sums: setting and drawing take log₂ n operations, whole batches at once.

    Source: Schaul et al. 2016, arXiv 1511.05952, appendix B.2.1.

    Args:
      size: n; all weights are 0 at first.
      device: where the tree lies.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._levels = max(1, (size - 1).bit_length())
        self._size, self._leaves = size, 1 << self._levels
        # Node i has the children 2i and 2i + 1; node 1 is the root. float32 sums would drift.
        self._sums = torch.zeros(2 * self._leaves, dtype=torch.float64, device=device)

    @property
    def weights(self) -> torch.Tensor:
        """float64 `[n]`, a view."""
        return self._sums[self._leaves : self._leaves + self._size]

    @property
    def total(self) -> torch.Tensor:
        """The sum of all weights, float64 `[]`."""
        return self._sums[1]

    def set(self, at: torch.Tensor, weights: torch.Tensor | float) -> None:
        """Sets the weights of leaves.

        Args:
          at: int64 `[N]`, each in 0 … n − 1. Of one that comes twice, either weight may count.
          weights: float `[N]` or one for all, at least 0.
        """
        node = at + self._leaves
        self._sums[node] = torch.as_tensor(weights, dtype=torch.float64, device=node.device)
        for _ in range(self._levels):
            node = node >> 1
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    def draw(self, points: torch.Tensor) -> torch.Tensor:
        """The leaves in which points lie, where each leaf is as wide as its weight: int64 `[N]`.

        Args:
          points: float64 `[N]`, parts of the total from 0 up to 1. Uniform ones draw in proportion to the weights.
        """
        left = points * self.total
        node = torch.ones_like(points, dtype=torch.int64)
        for _ in range(self._levels):
            node = 2 * node
            # Rounding may leave a point beyond the last weight that is not 0.
            right = (left >= self._sums[node]) & (self._sums[node + 1] > 0)
            left = left - torch.where(right, self._sums[node], 0.0)
            node = node + right
        return node - self._leaves
