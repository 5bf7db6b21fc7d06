"""What each acceptance rule does to drafts, computed exactly along a text the target wrote.

Along a text y drawn from the target (y_k ~ p_k), a round drafts from q_1 .. q_g and the accepted
drafts are, by definition, tokens of the text. So acceptance is decided by p, q and y alone:

  greedy     draft k is kept iff argmax q_k = y_k (y is the greedy text)
  coupled    iff argmax(log q_k + noise) = y_k, the noise being that which picked y_k
  rejection  with probability min(1, q_k(y_k) / p_k(y_k)): of the times the target's output is y_k,
             the share min(p, q) / p came from an accepted draft
  block      with probability min(1, q_k(y_k) / (p_k(y_k) P)), P the running ratio
             P = min(1, P p_k(y_k) / q_k(y_k)) over the drafts before (block verification accepts at
             least k of a drafted prefix with probability P_k, hence the same division as above)

q_k always has the tokens of the text before it, which the drafts were if they were kept.
"""
import numpy as np

WEYL = np.uint64(0x9e3779b97f4a7c15)


def mix64(h):
    with np.errstate(over="ignore"):
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return h ^ (h >> np.uint64(31))


def noise(seed, positions, vocab):
    """Gumbel noise [len(positions), vocab] of the engine's sampler, float64."""
    with np.errstate(over="ignore"):
        pos = np.asarray(positions, np.uint64) + np.uint64(1)
        key = mix64(mix64(np.full(len(pos), seed, np.uint64) + WEYL) ^ (pos * WEYL))
        tok = (np.arange(vocab, dtype=np.uint64) + np.uint64(1)) * WEYL
        bits = mix64(key[:, None] + tok[None]) >> np.uint64(12)
    u = (bits.astype(np.float64) + 0.5) * 2.0 ** -52
    return -np.log(-np.log(u))


def rejection(py, qy):
    """py, qy [..., g]: probabilities of the text's tokens -> conditional acceptance [..., g]"""
    return np.minimum(1.0, qy / np.maximum(py, 1e-300))


def block(py, qy):
    """Conditional acceptance of draft k given that drafts before it were kept, [..., g]."""
    out = np.empty_like(py)
    ratio = np.ones(py.shape[:-1])
    for k in range(py.shape[-1]):
        p, q = np.maximum(py[..., k], 1e-300), np.maximum(qy[..., k], 1e-300)
        out[..., k] = np.minimum(1.0, q / (p * ratio))
        ratio = np.minimum(1.0, ratio * p / q)
    return out


def walk(keep, begin, end, gamma):
    """Rounds over a text. keep [T, g] bool: draft k of anchor t is kept if those before it were.
    Tokens begin .. end - 1 are the output; the first one comes from the prompt alone.
    -> list of (anchor, rows that lie in the text, accepted)"""
    rounds, t = [], begin
    while t < end - 1:
        room = min(gamma, end - 1 - t)
        a = 0
        while a < room and keep[t, a]:
            a += 1
        rounds.append((t, room, a))
        t += a + 1
    return rounds


def survival(z, temperatures, biases):
    """z [..., g] raw confidence logits -> probability that drafts 1..k are all kept"""
    return np.cumprod(1.0 / (1.0 + np.exp(-z / np.asarray(temperatures) - np.asarray(biases))), -1)


def ece(predicted, observed, bins=20):
    """Expected calibration error of probabilities against 0/1 outcomes."""
    which = np.minimum((predicted * bins).astype(int), bins - 1)
    n = np.bincount(which, minlength=bins)
    gap = np.bincount(which, predicted, bins) - np.bincount(which, observed, bins)
    return float(np.abs(gap).sum() / max(1, n.sum()))


def auc(score, outcome):
    """Probability that a kept draft has the higher score; ties count half."""
    outcome = np.asarray(outcome, bool)
    n1, n0 = int(outcome.sum()), int((~outcome).sum())
    if n1 == 0 or n0 == 0:
        return float("nan")
    values, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    upto = np.cumsum(counts)
    rank = (upto - (counts - 1) / 2.0)[inverse]
    return float((rank[outcome].sum() - n1 * (n1 + 1) / 2.0) / (n1 * n0))


def fit(z, kept, room, prior=20.0):
    """Calibration of each row: (temperatures, biases), [g] each. z [N, g] raw logits; kept [N] drafts
    kept; room [N] rows that counted.

    Row k: the line through z_k that makes "draft k is kept" likeliest over the rounds that came to
    it (a logistic regression, by Newton steps). Late rows have few rounds, so its slope and bias are
    drawn to those of the row before, the first row's to 1 and 0, as `prior` rounds would."""
    before, lines = np.array([1.0, 0.0]), []
    for k in range(z.shape[1]):
        came = (kept >= k) & (room > k)
        x = np.stack([z[came][:, k], np.ones(came.sum())], 1)
        y, line = (kept[came] > k).astype(float), before.copy()
        for _ in range(50):
            p = 1.0 / (1.0 + np.exp(-np.clip(x @ line, -50, 50)))
            slope = x.T @ (p - y) + prior * (line - before)
            curve = (x * (p * (1 - p))[:, None]).T @ x + prior * np.eye(2)
            line = line - np.linalg.solve(curve, slope)
            line[0] = min(max(line[0], 0.125), 8.0)
        lines.append(line)
        before = line
    return [1.0 / float(a) for a, _ in lines], [float(b) for _, b in lines]
