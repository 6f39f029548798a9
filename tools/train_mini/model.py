"""The Qwen3.5-MoE text model in plain PyTorch, fast for rows of packed short dialogues, with straight-through 4-bit weights.

Sizes: B rows of T = 512 tokens; hidden 256; 8 layers, full attention where i % 4 == 3, gated delta rule (GDN) elsewhere.
Numerics follow transformers' `Qwen3_5MoeForCausalLM` (checked by `check_model.py` to 2e-6 in f32). Norm weights are stored
folded (they multiply directly), as the MLX checkpoint layout has them.

Segments: tokens of different dialogues in one row never see each other: the attention mask, the convolution and the GDN
state all respect `seg` (0 = padding).
"""
import math

import torch
import torch.nn.functional as F


class Config:
    vocab, hidden, layers, head_dim, heads, kv_heads, rotary = 8192, 256, 8, 256, 4, 1, 64
    key_heads, value_heads, key_dim, value_dim, conv = 2, 4, 128, 128, 4
    experts, top_k, expert_width, shared_width = 64, 8, 64, 128
    theta, eps, chunk = 1e7, 1e-6, 64
    dtype = torch.bfloat16

    def __init__(self, **kw):
        self.__dict__.update(kw)

    @staticmethod
    def full_attention(i):
        return i % 4 == 3


# ------------------------------------------------------------------------------------------------ quantisation

def affine_parameters(x, bits):
    """Scale and bias (both rounded to bf16) of MLX's affine quantisation; x [..., group] f32 -> [..., 1] each."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    levels = 2 ** bits - 1
    negative = low.abs() > high.abs()
    scale = ((high - low) / levels).clamp_min(1e-7)
    scale = torch.where(negative, scale, -scale)
    edge = torch.where(negative, low, high)
    q0 = torch.round(edge / scale)
    scale = torch.where(q0 != 0, edge / torch.where(q0 != 0, q0, torch.ones_like(q0)), scale)
    bias = torch.where(q0 == 0, torch.zeros_like(edge), edge)
    return scale.bfloat16().float(), bias.bfloat16().float()


def fake_quantise(w, bits, alpha, group=64):
    """w + alpha * (dequantised(w) - w); the gradient passes straight through."""
    with torch.no_grad():
        x = w.reshape(*w.shape[:-1], w.shape[-1] // group, group)
        scale, bias = affine_parameters(x, bits)
        q = torch.round((x - bias) / scale).clamp(0, 2 ** bits - 1)
        step = alpha * ((q * scale + bias).reshape(w.shape) - w)
    return w + step


def fake_quantise_flat(flat, bits, alpha, dtype):
    """One flat tensor of many weights: every input dimension is a multiple of 64, so groups never straddle rows."""
    return fake_quantise(flat.view(-1, 64), bits, alpha).to(dtype).view(-1)


# ------------------------------------------------------------------------------------------------ layers

def rms(x, w, eps=1e-6):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def unit_lower_inverse(a, base=8):
    """(I + A)^-1 for strictly lower triangular A [N, C, C]: Neumann series on 8x8 diagonal blocks, then block merging (stable in f32)."""
    n, c, _ = a.shape

    def blocks(s):
        return a.reshape(n, c // s, s, c // s, s).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    d = blocks(base)
    eye = torch.eye(base, device=a.device, dtype=a.dtype)

    def small_product(p, q):
        return (p.unsqueeze(-1) * q.unsqueeze(-3)).sum(-2)
    d2 = small_product(d, d)
    d4 = small_product(d2, d2)
    x = small_product(small_product(eye - d, eye + d2), eye + d4)
    s = base
    while s < c:
        b = blocks(2 * s)
        x = x.reshape(n, c // (2 * s), 2, s, s)
        x11, x22 = x[:, :, 0], x[:, :, 1]
        x21 = -(x22 @ b[..., s:, :s] @ x11)
        x = torch.cat([torch.cat([x11, torch.zeros_like(x21)], -1), torch.cat([x21, x22], -1)], -2)
        s *= 2
    return x.reshape(n, c, c)


class UnitLowerInverse(torch.autograd.Function):
    """With its own backward, -X^T G X^T, so that the merging steps are not differentiated."""

    @staticmethod
    def forward(ctx, a):
        x = unit_lower_inverse(a)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        xt = x.transpose(-1, -2)
        return -(xt @ g @ xt).tril(-1)


def gdn_chunks(x, ln1, qkv_w, zba_w, conv, a_log, dt_bias, seg, c):
    """Everything of a GDN layer that is parallel over chunks of 64 tokens -> what the loop over chunks needs, and z."""
    B, T, _ = x.shape
    H, D, C = c.value_heads, c.key_dim, c.chunk
    n = T // C
    h = rms(x, ln1).to(c.dtype)
    qkv = h @ qkv_w.t()
    z = h @ zba_w[0].t()
    b, a = (h @ zba_w[1].t()).float(), (h @ zba_w[2].t()).float()
    y = qkv * conv[:, 3].to(c.dtype)
    for i in (1, 2, 3):  # causal convolution of width 4 that stops at a segment's start
        shifted = F.pad(qkv, (0, 0, i, 0))[:, :T]
        same = (F.pad(seg, (i, 0), value=-1)[:, :T] == seg).unsqueeze(-1)
        y = y + torch.where(same, shifted, 0.) * conv[:, 3 - i].to(c.dtype)
    y = F.silu(y.float())
    K = c.key_heads * c.key_dim
    q, k, v = y.split([K, K, H * c.value_dim], -1)
    q, k = q.reshape(B, T, c.key_heads, D), k.reshape(B, T, c.key_heads, D)
    v = v.reshape(B, T, H, c.value_dim)

    def l2(t):
        return t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)
    rep = H // c.key_heads
    q, k = l2(q) * D ** -.5, l2(k)

    def by_chunk(t):  # [B, T, heads, d] -> [B, heads, chunks, C, d]
        return t.reshape(B, n, C, t.shape[2], t.shape[3]).permute(0, 3, 1, 2, 4)
    q, k = (by_chunk(t.unsqueeze(3).expand(B, T, c.key_heads, rep, D).reshape(B, T, H, D)) for t in (q, k))
    v = by_chunk(v)
    g = -a_log.exp() * F.softplus(a + dt_bias)
    g, beta = (t.transpose(1, 2).reshape(B, H, n, C) for t in (g, torch.sigmoid(b)))
    s = seg.reshape(B, 1, n, C)
    G = g.cumsum(-1)
    ok = (s.unsqueeze(-1) == s.unsqueeze(-2)) & torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    L = torch.where(ok, torch.exp(torch.where(ok, G.unsqueeze(-1) - G.unsqueeze(-2), 0.)), 0.)
    before = torch.cat([torch.full_like(s[:, :, :1, -1:], -1), s[:, :, :-1, -1:]], 2)  # segment that the incoming state belongs to
    e = torch.exp(G) * (s == before).float()
    last = (s == s[..., -1:]).float()
    A = ((k * beta.unsqueeze(-1)) @ k.transpose(-1, -2) * L).tril(-1)
    X = UnitLowerInverse.apply(A.reshape(-1, C, C)).reshape(B, H, n, C, C)
    u = X @ (v * beta.unsqueeze(-1))
    w = X @ (k * (beta * e).unsqueeze(-1))
    qk = (q @ k.transpose(-1, -2)) * L
    qe = q * e.unsqueeze(-1)
    kd = k * (torch.exp(G[..., -1:] - G) * last).unsqueeze(-1)

    def flat(t):
        return t.reshape(B * H, n, *t.shape[3:])
    return flat(u), flat(w), flat(qk), flat(qe), flat(kd), flat(e[..., -1:]), z


def gdn_loop(u, w, kd, decay):
    """The state from chunk to chunk. Outside torch.compile: inside it the graph has thousands of nodes and compiles for minutes."""
    n = u.shape[1]
    new, states = [u[:, 0]], [torch.zeros(u.shape[0], w.shape[-1], u.shape[-1], device=u.device, dtype=u.dtype)]
    state = None
    u, w, kd, decay = u.unbind(1), w.unbind(1), kd.unbind(1), decay.unbind(1)
    for i in range(1, n):
        d = kd[i - 1].transpose(-1, -2)
        state = torch.bmm(d, new[-1]) if state is None else torch.baddbmm(state * decay[i - 1].unsqueeze(-1), d, new[-1])
        states.append(state)
        new.append(torch.baddbmm(u[i], w[i], state, alpha=-1))
    return torch.stack(new, 1), torch.stack(states, 1)


def gdn_output(x, new, states, qk, qe, z, gate_norm, out_w, c):
    B, T, _ = x.shape
    o = (qk @ new + qe @ states).reshape(B, c.value_heads, T, c.value_dim).transpose(1, 2)
    o = rms(o, gate_norm) * F.silu(z.float().reshape(B, T, c.value_heads, c.value_dim))
    return x + (o.to(c.dtype).reshape(B, T, -1) @ out_w.t()).float()


def attention(x, ln1, wq, wk, wv, wo, q_norm, k_norm, seg, cos, sin, c):
    """Gated grouped-query attention with partial rotary embedding."""
    B, T, _ = x.shape
    h = rms(x, ln1).to(c.dtype)
    q, gate = (h @ wq.t()).reshape(B, T, c.heads, 2 * c.head_dim).chunk(2, -1)
    k = (h @ wk.t()).reshape(B, T, c.kv_heads, c.head_dim)
    v = (h @ wv.t()).reshape(B, T, c.kv_heads, c.head_dim)
    q, k = rms(q, q_norm), rms(k, k_norm)

    def rope(t):
        r, rest = t[..., :c.rotary], t[..., c.rotary:]
        r1, r2 = r.chunk(2, -1)
        return torch.cat([r * cos + torch.cat([-r2, r1], -1) * sin, rest], -1)
    q, k = rope(q).to(c.dtype), rope(k).to(c.dtype)
    rep = c.heads // c.kv_heads
    q = q.transpose(1, 2).reshape(B, c.kv_heads, rep * T, c.head_dim)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    s = (q @ k.transpose(-1, -2)).float().reshape(B, c.heads, T, T) * c.head_dim ** -.5
    ok = (seg.unsqueeze(-1) == seg.unsqueeze(-2)) & torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
    s = torch.where(ok.unsqueeze(1), s, -1e9).softmax(-1).to(c.dtype)
    o = (s.reshape(B, c.kv_heads, rep * T, T) @ v).reshape(B, c.heads, T, c.head_dim).transpose(1, 2)
    o = o * torch.sigmoid(gate.float()).to(c.dtype)
    return x + (o.reshape(B, T, -1) @ wo.t()).float()


def moe(x, ln2, router, eg, eu, ed, shared_gate, sg, su, sd, valid, c):
    """All experts as two large products weighted by the routing: at this size cheaper than gathering.

    -> output, balance loss (experts / top_k * sum of share * mean probability; 1 = even), share of tokens an expert gets
    """
    B, T, H = x.shape
    h = rms(x, ln2).to(c.dtype).reshape(B * T, H)
    p = (h @ router.t()).float().softmax(-1)
    _, index = p.topk(c.top_k, -1)
    hit = torch.zeros_like(p).scatter(-1, index, 1.)
    weight = p * hit
    weight = weight / weight.sum(-1, keepdim=True)
    gate, up = h @ eg.reshape(-1, H).t(), h @ eu.reshape(-1, H).t()
    a = (F.silu(gate.float()) * up.float()).reshape(-1, c.experts, c.expert_width) * weight.unsqueeze(-1)
    y = a.to(c.dtype).reshape(-1, c.experts * c.expert_width) @ ed.permute(0, 2, 1).reshape(-1, H)
    shared = (F.silu((h @ sg.t()).float()) * (h @ su.t()).float()).to(c.dtype) @ sd.t()
    y = y.float() + torch.sigmoid((h @ shared_gate.t()).float()) * shared.float()
    m = valid.reshape(-1, 1)
    count = m.sum().clamp_min(1)
    share = (hit * m).sum(0) / count
    balance = c.experts / c.top_k * (share * ((p * m).sum(0) / count)).sum()
    return x + y.reshape(B, T, H), balance, share.detach()


def head(x, norm, lm, target, weight, c):
    """-> weighted loss sum, sum over fully weighted tokens, argmax correct [N], loss a token [N]"""
    logits = (rms(x, norm).to(c.dtype) @ lm.t()).float().reshape(-1, c.vocab)
    t, w = target.reshape(-1), weight.reshape(-1)
    loss = F.cross_entropy(logits, t.clamp_min(0), reduction='none')
    return (loss * w).sum(), (w == 1).float().sum(), (logits.argmax(-1) == t).detach(), loss.detach()


# ------------------------------------------------------------------------------------------------ parameters

FOUR_BIT = {'emb', 'lm', 'q', 'k', 'v', 'o', 'qkv', 'z', 'b', 'a', 'out', 'eg', 'eu', 'ed', 'sg', 'su', 'sd'}
EIGHT_BIT = {'router', 'sgate'}


def initial(c, device, seed=0):
    """name -> f32 tensor. GDN decay as in Mamba (dt log-uniform in 1e-3..1e-1, A uniform in 1..16); output projections scaled by depth."""
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape, std):
        return torch.randn(*shape, generator=gen) * std
    H, s, depth = c.hidden, c.hidden ** -.5, 1 / math.sqrt(2 * c.layers)
    P = {'emb': normal(c.vocab, H, std=.02), 'lm': normal(c.vocab, H, std=.02), 'norm': torch.ones(H)}
    for i in range(c.layers):
        p = {'ln1': torch.ones(H), 'ln2': torch.ones(H)}
        if c.full_attention(i):
            wide, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
            p.update(q=normal(2 * wide, H, std=s), k=normal(kv, H, std=s), v=normal(kv, H, std=s), o=normal(H, wide, std=wide ** -.5 * depth),
                     qn=torch.ones(c.head_dim), kn=torch.ones(c.head_dim))
        else:
            n, wide = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim, c.value_heads * c.value_dim
            dt = torch.exp(torch.rand(c.value_heads, generator=gen) * (math.log(.1) - math.log(.001)) + math.log(.001))
            p.update(qkv=normal(n, H, std=s), z=normal(wide, H, std=s), b=normal(c.value_heads, H, std=s), a=normal(c.value_heads, H, std=s),
                     conv=normal(n, c.conv, std=.3) + torch.tensor([0., 0, 0, .5]), A_log=torch.log(1 + 15 * torch.rand(c.value_heads, generator=gen)),
                     dt_bias=dt + torch.log(-torch.expm1(-dt)), gnorm=torch.ones(c.value_dim), out=normal(H, wide, std=wide ** -.5 * depth))
        E, I, S = c.experts, c.expert_width, c.shared_width
        p.update(router=normal(E, H, std=s), eg=normal(E, I, H, std=s), eu=normal(E, I, H, std=s), ed=normal(E, H, I, std=I ** -.5 * depth),
                 sgate=normal(1, H, std=s), sg=normal(S, H, std=s), su=normal(S, H, std=s), sd=normal(H, S, std=S ** -.5 * depth))
        for k, v in p.items():
            P[f'{i}.{k}'] = v
    return {k: v.to(device) for k, v in P.items()}


class Net:
    """Weights and the forward pass.

    `P` name -> view. The leaves for autograd are `flat4` and `flat8` (all 4-bit weights but the embedding, all 8-bit ones),
    so that fake quantisation is one kernel, and `leaf` for the rest.
    """

    def __init__(self, c, device, compile=True, seed=0, P=None):
        self.c, self.device = c, device
        P = P or initial(c, device, seed)

        def bits(k):
            b = k.split('.')[-1]
            return 4 if b in FOUR_BIT - {'emb'} else 8 if b in EIGHT_BIT else 0
        self.names4, self.names8, self.names0 = ([k for k in P if bits(k) == b] for b in (4, 8, 0))

        def joined(names):
            return torch.cat([P[k].detach().reshape(-1) for k in names]).contiguous().requires_grad_()
        self.flat4, self.flat8 = joined(self.names4), joined(self.names8)
        self.leaf = {k: P[k].detach().clone().requires_grad_() for k in self.names0}
        self.shape = {k: P[k].shape for k in P}
        self.P = {}
        for names, flat in ((self.names4, self.flat4), (self.names8, self.flat8)):
            for k, v in zip(names, flat.detach().split([P[k].numel() for k in names])):
                self.P[k] = v.view(P[k].shape)
        for k in self.names0:
            self.P[k] = self.leaf[k].detach()
        self.functions(compile)

    def functions(self, compile):
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compile else (lambda f: f)
        self.chunks, self.output, self.attention, self.moe, self.head, self.quantise = (wrap(f) for f in (gdn_chunks, gdn_output, attention, moe, head, fake_quantise_flat))

    def grads(self):
        out = {}
        for names, flat in ((self.names4, self.flat4), (self.names8, self.flat8)):
            for k, v in zip(names, flat.grad.split([self.shape[k].numel() for k in names])):
                out[k] = v.view(self.shape[k])
        for k in self.names0:
            out[k] = self.leaf[k].grad
        return out

    def zero_grad(self):
        self.flat4.grad = self.flat8.grad = None
        for v in self.leaf.values():
            v.grad = None

    def rope(self, T):
        f = self.c.theta ** -(torch.arange(0, self.c.rotary, 2, device=self.device).float() / self.c.rotary)
        a = torch.arange(T, device=self.device).float()[:, None] * f[None]
        a = torch.cat([a, a], -1)[None, :, None, :]
        return a.cos(), a.sin()

    def weights(self, alpha):
        out = {}
        for names, flat, bits in ((self.names4, self.flat4, 4), (self.names8, self.flat8, 8)):
            for k, v in zip(names, self.quantise(flat, bits, alpha, self.c.dtype).split([self.shape[k].numel() for k in names])):
                out[k] = v.view(self.shape[k])
        out.update(self.leaf)
        return out

    def body(self, x, seg, Q, alpha):
        """-> hidden [B, T, H] f32, mean balance loss, shares a layer"""
        c = self.c
        valid = (seg > 0).float()
        cos, sin = self.rope(x.shape[1])
        h = F.embedding(x, self.quantise(Q['emb'], 4, alpha, torch.float32).view(c.vocab, -1))
        balance, shares = 0, []
        for i in range(c.layers):
            def w(*names):
                return [Q[f'{i}.{n}'] for n in names]
            if c.full_attention(i):
                h = self.attention(h, *w('ln1', 'q', 'k', 'v', 'o', 'qn', 'kn'), seg, cos, sin, c)
            else:
                ln1, qkv, z_, b_, a_, conv, a_log, dt_bias = w('ln1', 'qkv', 'z', 'b', 'a', 'conv', 'A_log', 'dt_bias')
                u, ww, qk, qe, kd, decay, z = self.chunks(h, ln1, qkv, (z_, b_, a_), conv, a_log, dt_bias, seg, c)
                new, states = gdn_loop(u, ww, kd, decay)
                h = self.output(h, new, states, qk, qe, z, *w('gnorm', 'out'), c)
            h, b, share = self.moe(h, *w('ln2', 'router', 'eg', 'eu', 'ed', 'sgate', 'sg', 'su', 'sd'), valid, c)
            balance = balance + b
            shares.append(share)
        return h, balance / c.layers, shares

    def forward(self, x, seg, learn, alpha, prompt_weight):
        """x int64 [B, T]; learn 1 on what the assistant writes; alpha 0 = full precision, 1 = rounded weights;
        prompt_weight: loss weight of the other tokens (a tensor).

        -> loss sum, count of learnt tokens, correct [B, T], loss [B, T], balance, shares, target [B, T] (-1: none)
        """
        target = torch.full_like(x, -1)
        weight = torch.zeros(x.shape, device=x.device)
        same = (seg[:, 1:] == seg[:, :-1]) & (seg[:, 1:] > 0)
        target[:, :-1] = torch.where(same, x[:, 1:], -1)
        weight[:, :-1] = torch.where(same, torch.where(learn[:, 1:] > 0, torch.ones_like(prompt_weight), prompt_weight), 0.)
        Q = self.weights(alpha)
        h, balance, shares = self.body(x, seg, Q, alpha)
        loss, n, ok, per_token = self.head(h, Q['norm'], Q['lm'], target, weight, self.c)
        return loss, n, ok.reshape(x.shape), per_token.reshape(x.shape), balance, shares, target

    def logits(self, x, seg, alpha):
        Q = self.weights(alpha)
        h, _, _ = self.body(x, seg, Q, alpha)
        return (rms(h, Q['norm']).to(self.c.dtype) @ Q['lm'].t()).float()
