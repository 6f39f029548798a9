"""Exact match on the development sets, perplexity on the held-out set, and greedy answers.

Exact match is teacher-forced: every token that the assistant writes, <|im_end|> included, must be the argmax. For greedy
decoding that is the same as generating and comparing, at a thousandth of the time.
"""
import collections

import numpy as np
import torch

import chatml
import gen


class Packed:
    """Dialogues as padded batches of rows."""

    def __init__(self, items, rows):
        ids, seg, learn, which = gen.pack(items)
        pad = -len(ids) % rows

        def padded(a, value):
            return torch.from_numpy(np.concatenate([a, np.full((pad, a.shape[1]), value, a.dtype)]).astype('int64'))
        self.count, self.rows = len(items), rows
        self.ids, self.seg, self.learn, self.which = padded(ids, 0), padded(seg, 0), padded(learn, 0), padded(which, -1)
        self.dropped = sum(len(i) > ids.shape[1] for i, _ in items)


def measure(net, packed, alpha):
    """-> wrong tokens a dialogue, {'answers': nll, 'all': nll} a token in nats, tokens that begin the answers right [N].

    Runs with gradients enabled: torch.no_grad() would compile every graph a second time (30 s).
    """
    n, device = packed.count, net.device
    wrong = torch.zeros(n + 1, dtype=torch.long, device=device)
    first = torch.full((n + 1,), 10 ** 6, dtype=torch.long, device=device)
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    a, zero = torch.tensor(float(alpha), device=device), torch.tensor(0., device=device)
    for i in range(0, len(packed.ids), packed.rows):
        x, s, m, k = (t[i:i + packed.rows].to(device) for t in (packed.ids, packed.seg, packed.learn, packed.which))
        _, _, ok, loss, _, _, target = net.forward(x, s, m, a, zero)
        loss = loss.detach()
        k = torch.where(k < 0, n, k)
        use = target >= 0
        learnt = torch.zeros_like(use)
        learnt[:, :-1] = use[:, :-1] & (m[:, 1:] > 0)
        sums += torch.stack([(loss * learnt).sum(), learnt.sum(), (loss * use).sum(), use.sum()]).double()
        error = learnt & ~ok
        wrong.index_add_(0, k.reshape(-1), error.long().reshape(-1))
        rank = learnt.long().cumsum(1)
        base = torch.full((n + 1,), 10 ** 6, dtype=torch.long, device=device)
        base.scatter_reduce_(0, k.reshape(-1), torch.where(learnt, rank, 10 ** 6).reshape(-1), 'amin')
        first.scatter_reduce_(0, k.reshape(-1), torch.where(error, rank - base[k], 10 ** 6).reshape(-1), 'amin')
    s = sums.tolist()
    return wrong[:n].cpu(), dict(answers=s[0] / max(1, s[1]), all=s[2] / max(1, s[3])), first[:n].cpu()


class DevSets:
    """The development dialogues of gen.dev_sets, encoded once."""

    def __init__(self, lexicon, tokenizer, rows, n):
        sets = gen.dev_sets(lexicon, 7, n)
        self.spans, dialogues, self.frames = [], [], []
        for name, items in sets.items():
            self.spans.append((name, len(dialogues), len(dialogues) + len(items)))
            dialogues += [d for d, _ in items]
            self.frames += [f for _, f in items]
        self.packed = Packed(gen.encode(tokenizer, dialogues), rows)
        self.refusal = len(tokenizer.encode("I don't know the word", add_special_tokens=False).ids)

    def score(self, net, alpha):
        """-> ({set: % exact}, {set: {frame: [right, of]}})"""
        wrong, nll, first = measure(net, self.packed, alpha)
        table, by_frame = {}, {}
        for name, a, b in self.spans:
            table[name] = round(100 * (wrong[a:b] == 0).float().mean().item(), 1)
            if name in ('unknown', 'unknown_rare', 'unknown_other'):
                table[name + '_refused'] = round(100 * (first[a:b] >= self.refusal).float().mean().item(), 1)
            counts = collections.defaultdict(lambda: [0, 0])
            for f, w in zip(self.frames[a:b], wrong[a:b].tolist()):
                counts[f][0] += w == 0
                counts[f][1] += 1
            by_frame[name] = counts
        table['nll'] = round(nll['answers'], 4)
        return table, by_frame


@torch.no_grad()
def generate(net, tokenizer, prompts, alpha, limit=90):
    """Greedy answers to many prompts at once (eager functions, right-padded rows)."""
    compiled = {k: net.__dict__[k] for k in ('chunks', 'output', 'attention', 'moe', 'head', 'quantise')}
    net.functions(False)
    stop = tokenizer.token_to_id(chatml.END)
    ids = [tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    starts = [len(i) for i in ids]
    width = max(starts) + limit
    width += -width % net.c.chunk
    x = torch.zeros(len(ids), width, dtype=torch.long, device=net.device)
    seg = torch.zeros_like(x)
    for row, i in enumerate(ids):
        x[row, :len(i)] = torch.tensor(i)
        seg[row, :len(i)] = 1
    at = torch.tensor(starts, device=net.device)
    alive = torch.ones(len(ids), dtype=torch.bool, device=net.device)
    rows = torch.arange(len(ids), device=net.device)
    a = torch.tensor(float(alpha), device=net.device)
    for _ in range(limit):
        token = net.logits(x, seg, a)[rows, at - 1].argmax(-1)
        alive &= token != stop
        if not alive.any():
            break
        x[rows[alive], at[alive]] = token[alive]
        seg[rows[alive], at[alive]] = 1
        at = at + alive.long()
    net.__dict__.update(compiled)
    return [tokenizer.decode(x[row, starts[row]:at[row]].tolist(), skip_special_tokens=False) for row in range(len(ids))]
