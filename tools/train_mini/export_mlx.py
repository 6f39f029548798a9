"""A training run -> the checkpoint folder that MLX-LM and Lily load.

Usage: export_mlx.py RUN [--out ../../models/lily-mini] [--tokenizer FILE]
RUN holds model.safetensors, or its pieces model.part* (see README). Writes model.safetensors, config.json,
generation_config.json, tokenizer.json and tokenizer_config.json; leaves the chat template alone.
"""
import argparse
import glob
import json
import os
import shutil

from tokenizers import Tokenizer

from model import Config
from words import HERE

MODELS = os.path.normpath(os.path.join(HERE, '..', '..', 'models', 'lily-mini'))


def config(token_id):
    """config.json: MLX's layout, sizes from model.Config; the names are transformers' (Qwen3_5MoeConfig)."""
    c = Config()
    end, text_end = token_id('<|im_end|>'), token_id('<|endoftext|>')
    quantization = {'group_size': 64, 'bits': 4, 'mode': 'affine'}
    for i in range(c.layers):
        for n in ('gate', 'shared_expert_gate'):
            quantization[f'language_model.model.layers.{i}.mlp.{n}'] = {'group_size': 64, 'bits': 8}
    text = {
        'attention_bias': False, 'attention_dropout': 0.0, 'attn_output_gate': True, 'bos_token_id': text_end, 'dtype': 'bfloat16', 'eos_token_id': text_end,
        'full_attention_interval': 4, 'head_dim': c.head_dim, 'hidden_act': 'silu', 'hidden_size': c.hidden, 'initializer_range': 0.02,
        'layer_types': ['full_attention' if c.full_attention(i) else 'linear_attention' for i in range(c.layers)],
        'linear_conv_kernel_dim': c.conv, 'linear_key_head_dim': c.key_dim, 'linear_num_key_heads': c.key_heads, 'linear_num_value_heads': c.value_heads,
        'linear_value_head_dim': c.value_dim, 'mamba_ssm_dtype': 'float32', 'max_position_embeddings': 262144, 'mlp_only_layers': [],
        'model_type': 'qwen3_5_moe_text', 'moe_intermediate_size': c.expert_width, 'mtp_num_hidden_layers': 0, 'mtp_use_dedicated_embeddings': False,
        'num_attention_heads': c.heads, 'num_experts': c.experts, 'num_experts_per_tok': c.top_k, 'num_hidden_layers': c.layers, 'num_key_value_heads': c.kv_heads,
        'output_router_logits': False, 'pad_token_id': None, 'partial_rotary_factor': c.rotary / c.head_dim, 'rms_norm_eps': c.eps,
        'rope_parameters': {'mrope_interleaved': True, 'mrope_section': [11, 11, 10], 'partial_rotary_factor': c.rotary / c.head_dim, 'rope_theta': int(c.theta), 'type': 'default'},
        'router_aux_loss_coef': 0.001, 'shared_expert_intermediate_size': c.shared_width, 'tie_word_embeddings': False, 'use_cache': True, 'vocab_size': c.vocab}
    return {
        'architectures': ['Qwen3_5MoeForConditionalGeneration'], 'eos_token_id': [end, text_end], 'image_token_id': token_id('<|image_pad|>'), 'model_type': 'qwen3_5_moe',
        'quantization': quantization, 'quantization_config': quantization, 'text_config': text, 'tie_word_embeddings': False, 'transformers_version': '4.57.1',
        'video_token_id': token_id('<|video_pad|>'), 'vision_end_token_id': token_id('<|vision_end|>'), 'vision_start_token_id': token_id('<|vision_start|>')}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('run')
    ap.add_argument('--out', default=MODELS)
    ap.add_argument('--tokenizer', default=os.path.join(MODELS, 'tokenizer.json'))
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    whole = os.path.join(a.run, 'model.safetensors')
    pieces = [whole] if os.path.exists(whole) else sorted(glob.glob(os.path.join(a.run, 'model.part*')))
    if not pieces:
        raise SystemExit(f'export_mlx: {a.run} holds neither model.safetensors nor model.part*; give the --out folder of train.py')
    with open(os.path.join(a.out, 'model.safetensors'), 'wb') as out:
        for p in pieces:
            with open(p, 'rb') as file:
                shutil.copyfileobj(file, out)
    token_id = Tokenizer.from_file(a.tokenizer).token_to_id
    end, text_end = token_id('<|im_end|>'), token_id('<|endoftext|>')

    def write(name, body, **kw):
        with open(os.path.join(a.out, name), 'w') as file:
            json.dump(body, file, **kw)
    write('config.json', config(token_id), indent=1)
    write('generation_config.json', {'eos_token_id': [end, text_end], 'pad_token_id': text_end, 'do_sample': False})
    write('tokenizer_config.json', {'add_prefix_space': None, 'bos_token': None, 'eos_token': '<|im_end|>', 'pad_token': '<|endoftext|>', 'unk_token': None,
                                    'model_max_length': 262144, 'tokenizer_class': 'PreTrainedTokenizerFast', 'clean_up_tokenization_spaces': False})
    if os.path.realpath(a.tokenizer) != os.path.realpath(os.path.join(a.out, 'tokenizer.json')):
        shutil.copy(a.tokenizer, os.path.join(a.out, 'tokenizer.json'))
    print('wrote', a.out, {f: os.path.getsize(os.path.join(a.out, f)) for f in sorted(os.listdir(a.out))})


if __name__ == '__main__':
    main()
