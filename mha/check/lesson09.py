"""The exercises of lesson 09, what heads cost."""

from mha.check.verdict import Exercise

score_bytes = Exercise(
    "score_bytes",
    lambda batch, num_heads, seq_q, seq_k, itemsize: batch * num_heads * seq_q * seq_k * itemsize,
    [
        (2, 3, 5, 7, 4),
        (1, 12, 1024, 1024, 4),
        (2, 12, 1, 4096, 2),
        (3, 1, 5, 9, 2),
    ],
    {
        "heads forgotten": lambda b, n, q, k, size: b * q * k * size,
        "batch forgotten": lambda b, n, q, k, size: n * q * k * size,
        "elements, not bytes": lambda b, n, q, k, size: b * n * q * k,
        "itemsize ignored": lambda b, n, q, k, size: b * n * q * k * 4,
        "square of seq_q": lambda b, n, q, k, size: b * n * q * q * size,
        "square of seq_k": lambda b, n, q, k, size: b * n * k * k * size,
    },
)
multiplications = Exercise(
    "multiplications",
    lambda batch, seq, d_model, num_heads: 2 * batch * seq * seq * d_model,
    [
        (2, 5, 12, 3),
        (2, 5, 12, 1),
        (1, 128, 512, 8),
        (3, 1, 10, 5),
    ],
    {
        "grows with num_heads": lambda b, s, d, n: 2 * b * s * s * d * n,
        "shrinks with num_heads": lambda b, s, d, n: 2 * b * s * s * d // n,
        "one product only": lambda b, s, d, n: b * s * s * d,
        "batch forgotten": lambda b, s, d, n: 2 * s * s * d,
        "projections too": lambda b, s, d, n: 2 * b * s * s * d + 4 * b * s * d * d,
        "additions too": lambda b, s, d, n: 4 * b * s * s * d,
        "seq once": lambda b, s, d, n: 2 * b * s * d,
    },
    [("projections too", lambda b, s, d, n: 2 * b * s * s * d + 3 * b * s * d * d)],
)
