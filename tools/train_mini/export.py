"""Trained weights -> an MLX affine 4-bit checkpoint (language_model.* names, norms folded, conv1d [C, 4, 1], A_log f32)."""
import torch
from safetensors.torch import save_file

from model import affine_parameters

PLAIN = {'ln1': 'input_layernorm.weight', 'ln2': 'post_attention_layernorm.weight', 'conv': 'linear_attn.conv1d.weight', 'A_log': 'linear_attn.A_log',
         'dt_bias': 'linear_attn.dt_bias', 'gnorm': 'linear_attn.norm.weight', 'qn': 'self_attn.q_norm.weight', 'kn': 'self_attn.k_norm.weight'}
QUANTISED = {'qkv': 'linear_attn.in_proj_qkv', 'z': 'linear_attn.in_proj_z', 'b': 'linear_attn.in_proj_b', 'a': 'linear_attn.in_proj_a', 'out': 'linear_attn.out_proj',
             'q': 'self_attn.q_proj', 'k': 'self_attn.k_proj', 'v': 'self_attn.v_proj', 'o': 'self_attn.o_proj', 'router': 'mlp.gate', 'eg': 'mlp.switch_mlp.gate_proj',
             'eu': 'mlp.switch_mlp.up_proj', 'ed': 'mlp.switch_mlp.down_proj', 'sgate': 'mlp.shared_expert_gate', 'sg': 'mlp.shared_expert.gate_proj',
             'su': 'mlp.shared_expert.up_proj', 'sd': 'mlp.shared_expert.down_proj'}


def quantise(name, w, bits, out):
    """Adds name.weight (uint32, lowest bits first), name.scales, name.biases (bf16); groups of 64 along the input dimension."""
    w = w.detach().float().cpu()
    x = w.reshape(*w.shape[:-1], -1, 64)
    scale, bias = affine_parameters(x, bits)
    q = torch.round((x - bias) / scale).clamp(0, 2 ** bits - 1).to(torch.int64).reshape(*w.shape[:-1], -1, 32 // bits)
    out[name + '.weight'] = (q << (torch.arange(32 // bits) * bits)).sum(-1).to(torch.uint32)
    out[name + '.scales'] = scale.squeeze(-1).bfloat16().contiguous()
    out[name + '.biases'] = bias.squeeze(-1).bfloat16().contiguous()


def tensors(P):
    out = {}
    for k, v in P.items():
        if k == 'emb':
            quantise('language_model.model.embed_tokens', v, 4, out)
        elif k == 'lm':
            quantise('language_model.lm_head', v, 4, out)
        elif k == 'norm':
            out['language_model.model.norm.weight'] = v.detach().cpu().bfloat16()
        else:
            i, n = k.split('.')
            prefix = f'language_model.model.layers.{i}.'
            if n in QUANTISED:
                quantise(prefix + QUANTISED[n], v, 8 if n in ('router', 'sgate') else 4, out)
            else:
                w = v.detach().cpu()
                w = w.unsqueeze(-1) if n == 'conv' else w
                out[prefix + PLAIN[n]] = w.float() if n == 'A_log' else w.bfloat16().contiguous()
    return out


def save(P, path):
    save_file(tensors(P), path, metadata={'format': 'mlx'})


def load(path):
    """The inverse: a checkpoint file -> P with dequantised f32 weights."""
    from safetensors.torch import load_file
    w = load_file(path)

    def dequantised(n):
        q, s, b = w[n + '.weight'].to(torch.int64) & 0xffffffff, w[n + '.scales'].float(), w[n + '.biases'].float()
        bits = q.shape[-1] * 32 // (s.shape[-1] * 64)
        q = (q.unsqueeze(-1) >> (torch.arange(32 // bits) * bits)) & (2 ** bits - 1)
        return (q.reshape(*s.shape, 64).float() * s.unsqueeze(-1) + b.unsqueeze(-1)).flatten(-2)
    P = {'emb': dequantised('language_model.model.embed_tokens'), 'lm': dequantised('language_model.lm_head'), 'norm': w['language_model.model.norm.weight'].float()}
    layers = 1 + max(int(k.split('.')[3]) for k in w if '.layers.' in k)
    for i in range(layers):
        prefix = f'language_model.model.layers.{i}.'
        for k, n in QUANTISED.items():
            if prefix + n + '.weight' in w:
                P[f'{i}.{k}'] = dequantised(prefix + n)
        for k, n in PLAIN.items():
            if prefix + n in w:
                P[f'{i}.{k}'] = w[prefix + n].float().squeeze(-1) if k == 'conv' else w[prefix + n].float()
    return P
