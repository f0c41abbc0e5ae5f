"""Layout of the symmetric Taylor features inside the kernels, and conversion of states.

    phi(x) = (x R + r) * (x T + t)      R, T of zeros and ones, r, t zero but for the last tile

Two matmuls with constant matrices form any list of products on the tensor cores, exactly (each output is one
input), and leave them in registers as operands of the next matmul. Queries, times K^(-1/2), carry the weights
(squares 1/2, all others 1); keys and the sums over them carry none:

    phi_q(q) . phi_k(k) = 1 + s + s^2 / 2,   s = q . k / sqrt(K)

Rows: strict lower triangle, squares, then (last tile only) the linear features, the constant, zeros.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.checks import expect

MAX_KEY_SIZE = 32


def symmetric_size(key_size: int) -> int:
    """Return F of the canonical layout: 1 + K + K (K + 1) / 2."""
    return 1 + key_size + key_size * (key_size + 1) // 2


ROWS = ((8, 32, 32), (16, 128, 32), (24, 320, 64), (32, 512, 64))
"""(largest key size, rows of products only, mixed rows). The order of the rows, and so a state, does not
depend on the tiles of a kernel. 32 mixed rows would suffice for K = 24, but 8 warps compute a tile of 32 rows
twice: with 64 rows the float32 kernels are 3 to 4 times shorter."""


@dataclass(frozen=True)
class Layout:
    """Features of keys of `key_size`, products only in tiles of `tile` rows."""

    key_size: int
    tile: int

    @property
    def _rows(self) -> tuple[int, int]:
        return next((products, last) for largest, products, last in ROWS if self.key_size <= largest)

    @property
    def last(self) -> int:
        """Rows of the last tile, the mixed one."""
        return self._rows[1]

    @property
    def padded_key_size(self) -> int:
        """K rounded up to a size that a matmul can contract."""
        return 16 if self.key_size <= 16 else 32

    @property
    def pure(self) -> int:
        """Tiles of products only."""
        products = self._rows[0]
        expect(products % self.tile == 0, "tile", self.tile, f"a divisor of {products}, the rows of products")
        return products // self.tile

    @property
    def size(self) -> int:
        """Rows of the state, zero rows included."""
        return sum(self._rows)

    @property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """(first row, rows) of each tile; the last one is the mixed one."""
        return (*((i * self.tile, self.tile) for i in range(self.pure)), self._rows)

    @functools.cached_property
    def features(self) -> tuple[tuple[int | None, int | None] | None, ...]:
        """For each row the two factors of its feature: channels, or None for 1; None for a zero row."""
        channels = range(self.key_size)
        products = [(m, n) for m in channels for n in range(m)] + [(m, m) for m in channels]
        first = self._rows[0]
        # Rows of pure tiles must be products, rows of the last one anything.
        head = [*products[:first], *[None] * (first - len(products))]
        tail = [*products[first:], *((m, None) for m in channels), (None, None)]
        return (*head, *tail, *[None] * (self.last - len(tail)))

    @functools.cached_property
    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """R, T and T with the queries' weights, (padded K, size) float32."""
        one, two = np.zeros((2, self.padded_key_size, self.size), np.float32)
        for row, feature in enumerate(self.features):
            for table, channel in zip((one, two), feature or (), strict=False):
                if channel is not None:
                    table[channel, row] = 1
        return one, two, np.where(one * two == 1, np.float32(0.5), two)  # squares

    @property
    def _scales(self) -> np.ndarray:
        """Scale of each canonical feature: 1, x, x^2, lower triangle row-major."""
        k = self.key_size
        factors = [1.0, k**-0.25, (2 * k) ** -0.5, k**-0.5]
        return np.repeat(factors, [1, k, k, k * (k - 1) // 2]).astype(np.float32)

    @functools.cached_property
    def linear_columns(self) -> np.ndarray:
        """Columns of the K linear features in the moments, which are also their rows in the last tile."""
        return np.array([self.features.index((m, None)) - self._rows[0] for m in range(self.key_size)])

    @property
    def first_linear(self) -> int:
        """The first of `linear_columns`, which are contiguous up to `constant_column`."""
        return int(self.linear_columns[0])

    @property
    def constant_column(self) -> int:
        """Column of the moments of the constant feature."""
        return self.features.index((None, None)) - self._rows[0]

    def state_to_kernel(self, kv: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Convert canonical sums (B, H, F, V), (B, H, F) to rows in this layout (B, H, size, V) and moments.

        The moments are (B, H, K + 1, last); their last row is the number of tokens.
        """
        # Of an empty state, zeros, XLA would compute all this while it compiles: seconds for each layer.
        kv, z = jax.lax.optimization_barrier((kv, z))
        k = self.key_size
        kv, z = kv / self._scales[:, None], z / self._scales
        constant, linear, squares, products = jnp.split(kv, (1, 1 + k, 1 + 2 * k), axis=2)
        rows = products.shape[2] + k
        gap = jnp.zeros((*kv.shape[:2], self._rows[0] + self.first_linear - rows, kv.shape[3]), kv.dtype)
        kv = jnp.concatenate([products, squares, gap, linear, constant], axis=2)
        kv = jnp.pad(kv, [(0, 0), (0, 0), (0, self.size - kv.shape[2]), (0, 0)])
        square = np.zeros((k, k), int)
        square[np.tril_indices(k, -1)] = 1 + 2 * k + np.arange(k * (k - 1) // 2)
        square = np.maximum(square, square.T)
        square[np.diag_indices(k)] = 1 + k + np.arange(k)
        moments = jnp.zeros((*z.shape[:2], self.padded_key_size + 1, self.last), z.dtype)
        moments = moments.at[:, :, np.arange(k)[:, None], self.linear_columns].set(z[..., square])
        moments = moments.at[:, :, :k, self.constant_column].set(z[..., 1 : 1 + k])
        return kv, moments.at[:, :, -1, 0].set(z[..., 0])

    def state_from_kernel(self, kv: jax.Array, moments: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Invert `state_to_kernel`."""
        k = self.key_size
        second = moments[:, :, np.arange(k)[:, None], self.linear_columns]
        first = moments[:, :, :k, self.constant_column]
        diagonal, (m, n) = np.arange(k), np.tril_indices(k, -1)
        squares, products = second[:, :, diagonal, diagonal], second[:, :, m, n]
        z = jnp.concatenate([moments[:, :, -1, :1], first, squares, products], axis=-1)
        linear, constant = (self._rows[0] + column for column in (self.first_linear, self.constant_column))
        rows = [(constant, 1), (linear, k), (len(m), k), (0, len(m))]
        kv = jnp.concatenate([kv[:, :, row : row + count] for row, count in rows], axis=2)
        return kv * self._scales[:, None], z * self._scales

    def moments_gradient_in(self, dmoments: jax.Array) -> jax.Array:
        """Convert the final moments' gradient to sums over later queries, for each key's x x^T."""
        square = (slice(None), slice(None), np.arange(self.key_size)[:, None], self.linear_columns)
        second = dmoments[square]
        return dmoments.at[square].set(second + second.swapaxes(-1, -2))

    def moments_gradient_out(self, dmoments: jax.Array) -> jax.Array:
        """Convert sums over the queries to the initial moments' gradient: half of x x^T, and one count."""
        weights = np.zeros((self.padded_key_size + 1, self.last), np.float32)
        weights[:-1, self.linear_columns] = 0.5
        weights[:-1, self.constant_column] = 1
        weights[-1, 0] = 1
        return dmoments * weights
