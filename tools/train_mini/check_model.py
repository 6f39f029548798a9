"""Numerical checks of model.py on the CPU in f32: the triangular inverse, packed rows, and transformers' Qwen3_5Moe.

Usage: check_model.py   (needs transformers with Qwen3.5-MoE)
"""
import torch

from model import Config, Net, UnitLowerInverse, unit_lower_inverse

NAMES = {'input_layernorm': 'ln1', 'post_attention_layernorm': 'ln2', 'linear_attn.in_proj_qkv': 'qkv', 'linear_attn.in_proj_z': 'z', 'linear_attn.in_proj_b': 'b', 'linear_attn.in_proj_a': 'a',
         'linear_attn.conv1d': 'conv', 'linear_attn.A_log': 'A_log', 'linear_attn.dt_bias': 'dt_bias', 'linear_attn.norm': 'gnorm', 'linear_attn.out_proj': 'out',
         'self_attn.q_proj': 'q', 'self_attn.k_proj': 'k', 'self_attn.v_proj': 'v', 'self_attn.o_proj': 'o', 'self_attn.q_norm': 'qn', 'self_attn.k_norm': 'kn', 'mlp.gate': 'router',
         'mlp.experts.down_proj': 'ed', 'mlp.shared_expert_gate': 'sgate', 'mlp.shared_expert.gate_proj': 'sg', 'mlp.shared_expert.up_proj': 'su', 'mlp.shared_expert.down_proj': 'sd'}


def check_inverse():
    torch.manual_seed(0)
    a = (torch.randn(6, 64, 64).tril(-1) * .3).requires_grad_()
    x = UnitLowerInverse.apply(a)
    g = torch.randn_like(x)
    mine, = torch.autograd.grad((x * g).sum(), a)
    b = a.detach().clone().requires_grad_()
    y = torch.linalg.inv(torch.eye(64) + b)
    theirs, = torch.autograd.grad((y * g).sum(), b)
    forward, backward = ((x - y).norm() / y.norm()).item(), ((mine - theirs.tril(-1)).norm() / theirs.tril(-1).norm()).item()
    ones = torch.ones(1, 64, 64).tril(-1)
    worst = (unit_lower_inverse(ones) @ (torch.eye(64) + ones) - torch.eye(64)).abs().max().item()
    print(f'inverse: relative error {forward:.1e}, gradient {backward:.1e}, worst case {worst:.1e}')
    assert forward < 1e-4 and backward < 1e-4 and worst < 1e-4


def reference(net):
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM
    c = net.c
    hc = Qwen3_5MoeTextConfig(vocab_size=c.vocab, hidden_size=c.hidden, num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim,
                              linear_num_key_heads=c.key_heads, linear_num_value_heads=c.value_heads, linear_key_head_dim=c.key_dim, linear_value_head_dim=c.value_dim, linear_conv_kernel_dim=c.conv,
                              num_experts=c.experts, num_experts_per_tok=c.top_k, moe_intermediate_size=c.expert_width, shared_expert_intermediate_size=c.shared_width, rms_norm_eps=c.eps,
                              tie_word_embeddings=False, rope_parameters=dict(rope_type='default', rope_theta=c.theta, partial_rotary_factor=.25, mrope_section=[11, 11, 10], mrope_interleaved=True))
    m = Qwen3_5MoeForCausalLM(hc).eval().float()
    state, P = {}, net.P
    for k, old in m.state_dict().items():
        if k == 'lm_head.weight':
            v = P['lm']
        elif k == 'model.embed_tokens.weight':
            v = P['emb']
        elif k == 'model.norm.weight':
            v = P['norm'] - 1  # transformers stores norms as an offset from one
        else:
            _, _, i, rest = k.split('.', 3)
            rest = rest.replace('.weight', '')
            if rest == 'mlp.experts.gate_up_proj':
                v = torch.cat([P[f'{i}.eg'], P[f'{i}.eu']], 1)
            else:
                n = NAMES[rest]
                v = P[f'{i}.{n}']
                v = v - 1 if n in ('ln1', 'ln2', 'qn', 'kn') else v.unsqueeze(1) if n == 'conv' else v
        assert v.shape == old.shape, f'{k}: {tuple(v.shape)}, expected {tuple(old.shape)}'
        state[k] = v.detach()
    m.load_state_dict(state)
    return m


@torch.no_grad()
def check_transformers():
    torch.manual_seed(0)
    net = Net(Config(dtype=torch.float32, layers=4, experts=8, top_k=2, vocab=512), 'cpu', compile=False)
    for k, p in net.P.items():
        if p.ndim == 1 and not k.endswith(('A_log', 'dt_bias')):
            p += torch.randn_like(p) * .1
    parts = [torch.randint(0, 512, (1, n)) for n in (100, 90, 50)]
    parts[0][0, 20:60] = 7  # a run of one token: the hard case of the inverse
    pad = torch.zeros(1, 16, dtype=torch.long)
    x = torch.cat(parts + [pad], 1)
    seg = torch.cat([torch.full_like(p, i + 1) for i, p in enumerate(parts)] + [pad], 1)
    packed, m, at = net.logits(x, seg, torch.tensor(0.)), reference(net), 0
    for p in parts:
        alone = m(input_ids=p).logits
        error = ((packed[:, at:at + p.shape[1]] - alone).norm() / alone.norm()).item()
        print(f'packed row against transformers, {p.shape[1]} tokens: relative error {error:.1e}')
        assert error < 1e-4
        at += p.shape[1]


if __name__ == '__main__':
    check_inverse()
    check_transformers()
