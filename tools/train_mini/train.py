"""Trains lily-mini on one NVIDIA GPU; everything is fixed by --seed. Writes log.jsonl, model.safetensors and scores.json to --out.

    python train.py --out work/run --steps 6500
    python train.py --out work/tuned --start work/run/model.safetensors --steps 2000 --lr 1.5e-3 --lr-adam 8e-4

About 105 ms a step of 128 rows x 512 tokens on an H200. A checkpoint of the whole state is written every --save-every
steps; --resume continues from it with the same data. `--toy` is a small run on the CPU that exercises the code.
"""
import argparse
import json
import math
import multiprocessing
import os
import sys
import time

os.environ.setdefault('RAYON_NUM_THREADS', '2')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'true')
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from tokenizers import Tokenizer  # noqa: E402

import chatml  # noqa: E402
import gen  # noqa: E402
import heldout  # noqa: E402
from words import Lexicon, load  # noqa: E402


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', default=os.path.join(HERE, 'work', 'run'))
    ap.add_argument('--facts', default=os.path.join(HERE, 'work', 'facts.json'))
    ap.add_argument('--tokenizer', default=os.path.join(HERE, '..', '..', 'models', 'lily-mini', 'tokenizer.json'))
    ap.add_argument('--steps', type=int, default=6500)
    ap.add_argument('--rows', type=int, default=128, help='rows of 512 tokens a step')
    ap.add_argument('--lr', type=float, default=8e-3, help='peak rate of Muon')
    ap.add_argument('--lr-adam', type=float, default=4e-3)
    ap.add_argument('--qat', type=float, default=.67, help='from this share of the steps on the weights are rounded to 4 bits in the forward pass')
    ap.add_argument('--balance', type=float, default=.01, help='weight of the expert balance loss')
    ap.add_argument('--prompt-weight', type=float, default=.1, help='loss weight of tokens the assistant does not write, at the start')
    ap.add_argument('--prompt-weight-end', type=float, default=.02)
    ap.add_argument('--workers', type=int, default=13)
    ap.add_argument('--evals', type=int, default=2, help='scores on the development sets on the way')
    ap.add_argument('--dev', type=int, default=1200, help='size of the largest development set')
    ap.add_argument('--seed', type=int, default=0)
    ap.add_argument('--words', type=int, default=0, help='only the first words of the lexicon')
    ap.add_argument('--tools', type=int, default=gen.COUNTS['tool'], help='tool dialogues a pass')
    ap.add_argument('--cache', help='file of torch.compile artifacts to load, and to write')
    ap.add_argument('--save-every', type=int, default=1000)
    ap.add_argument('--start', help='begin from the (4-bit) weights of this model.safetensors; rounding is then on from the first step')
    ap.add_argument('--resume', action='store_true')
    ap.add_argument('--toy', action='store_true')
    return ap.parse_args()


A = arguments()
START = time.time()
if A.toy:
    A.rows, A.steps, A.dev, A.words, A.workers, A.save_every = 4, min(A.steps, 12), 24, 300, 1, 6
_worker = None


def work(index):
    """Data process: one pass over the lexicon, packed."""
    global _worker
    if _worker is None:
        os.nice(19)  # the compiler and the training loop come first
        _worker = (Lexicon(load(A.facts), A.words), Tokenizer.from_file(A.tokenizer))
        gen.COUNTS.update(tool=A.tools)
        if A.toy:
            gen.COUNTS.update(chat=60, tool=30)
    lexicon, tokenizer = _worker
    ids, seg, learn, _ = gen.pack(gen.encode(tokenizer, gen.shard(lexicon, 1000 + 100003 * A.seed + index)))
    return ids, seg.astype('uint8'), learn


class Stream:
    """Batches in a fixed order. Its state is the shard, the rows left over from the one before, and the batch within it."""

    def __init__(self, torch, device, state=None):
        self.torch, self.device = torch, device
        self.shard, self.left, self.batch = state or (0, None, 0)
        self.pool = multiprocessing.get_context('fork').Pool(A.workers)
        self.source = self.pool.imap(work, range(self.shard, self.shard + 2000))

    def __iter__(self):
        torch, skip = self.torch, self.batch
        while True:
            parts = [torch.from_numpy(a) for a in next(self.source)]
            if self.left is not None:
                parts = [torch.cat([a, b]) for a, b in zip(self.left, parts)]
            order = torch.randperm(len(parts[0]), generator=torch.Generator().manual_seed(self.shard))
            parts = [p[order].to(self.device) for p in parts]
            n = len(parts[0]) // A.rows
            for i in range(skip, n):
                self.batch = i + 1
                yield tuple(p[i * A.rows:(i + 1) * A.rows].long() for p in parts)
            skip, self.batch, self.shard = 0, 0, self.shard + 1
            self.left = [p[n * A.rows:].cpu() for p in parts]

    def state(self):
        return self.shard, self.left, self.batch


def main():
    os.makedirs(A.out, exist_ok=True)
    log_file = open(os.path.join(A.out, 'log.jsonl'), 'a')

    def log(**k):
        line = json.dumps({**k, 't': round(time.time() - START, 1)})
        print(line, flush=True)
        log_file.write(line + '\n')
        log_file.flush()
    state_path = os.path.join(A.out, 'state.pt')
    import torch
    state = torch.load(state_path, map_location='cpu') if A.resume and os.path.exists(state_path) else None
    device = 'cpu' if A.toy else 'cuda'
    stream = Stream(torch, device, state and state['stream'])  # forks before CUDA starts
    lexicon, tokenizer = Lexicon(load(A.facts), A.words), Tokenizer.from_file(A.tokenizer)
    import evaluate
    import export
    import model
    import optim
    torch.manual_seed(A.seed)
    torch.set_float32_matmul_precision('high')
    if A.cache and os.path.exists(A.cache):
        torch.compiler.load_cache_artifacts(open(A.cache, 'rb').read())
    config = model.Config(dtype=torch.float32, layers=4, experts=8, top_k=2) if A.toy else model.Config()
    weights = {k: p.to(device) for k, p in export.load(A.start).items()} if A.start else None
    net = model.Net(config, device, compile=not A.toy, seed=A.seed, P=weights)
    optimiser = optim.Optimiser(net, A.lr, A.lr_adam)
    log(parameters=sum(p.numel() for p in net.P.values()), device=device if A.toy else torch.cuda.get_device_name(), headwords=len(lexicon.facts), arguments=vars(A))
    dev = evaluate.DevSets(lexicon, tokenizer, A.rows, A.dev)
    held = evaluate.Packed(heldout.sequences(lexicon, tokenizer), A.rows)
    log(dev_dialogues=dev.packed.count, dev_rows=len(dev.packed.ids), dropped=dev.packed.dropped)
    step0 = 0
    if state:
        with torch.no_grad():
            for k, p in net.P.items():
                p.copy_(state['P'][k])
        optimiser.load(state['optimiser'])
        step0 = state['step']
        log(resumed=step0)
    alpha, prompt_weight = torch.tensor(0., device=device), torch.tensor(A.prompt_weight, device=device)
    qat = 0 if A.start else int(A.steps * A.qat)
    eval_at = {int(A.steps * (i + 1) / A.evals) for i in range(A.evals - 1)}
    batches, losses, waited, last, tick = iter(stream), [], 0., step0, time.time()
    for step in range(step0, A.steps):
        if step == qat and not A.start:
            log(at='before rounding', bf16=dev.score(net, 0)[0])
        if step >= qat:
            alpha.fill_(1.)
        prompt_weight.fill_(A.prompt_weight + (A.prompt_weight_end - A.prompt_weight) * step / A.steps)
        t = time.time()
        x, seg, learn = next(batches)
        waited += time.time() - t
        loss, n, ok, per_token, balance, shares, _ = net.forward(x, seg, learn, alpha, prompt_weight)
        (loss / n.clamp_min(1) + A.balance * balance).backward()
        optimiser.step(min(1, (step + 1) / min(150, A.steps / 10)) * (1 - step / A.steps))
        with torch.no_grad():
            use = torch.zeros_like(ok)
            use[:, :-1] = (learn[:, 1:] > 0) & (seg[:, 1:] == seg[:, :-1])
            losses.append(torch.stack([(per_token * use).sum() / use.sum(), balance.detach()]))
        if (step + 1) % 100 == 0 or step == step0 or A.toy:
            mean, even = torch.stack(losses).mean(0).tolist()
            u = torch.stack(shares)
            log(step=step + 1, loss=round(mean, 4), balance=round(even, 3), dead_experts=int((u < .01).sum()), busiest=round(u.max().item(), 2), shard=stream.shard,
                steps_per_s=round((step + 1 - last) / (time.time() - tick), 2), waited=round(waited, 1))
            losses, waited, last, tick = [], 0., step + 1, time.time()
            if not math.isfinite(mean):
                raise SystemExit(f'train: the loss is {mean} at step {step + 1}; lower --lr')
        if A.cache and step == step0 + 20 and not os.path.exists(A.cache):
            with open(A.cache, 'wb') as file:
                file.write(torch.compiler.save_cache_artifacts()[0])
        if (step + 1) % A.save_every == 0 and step + 1 < A.steps:
            torch.save(dict(step=step + 1, P={k: p.cpu() for k, p in net.P.items()}, optimiser=optimiser.state(), stream=stream.state()), state_path + '.new')
            os.replace(state_path + '.new', state_path)
        if step + 1 in eval_at:
            log(at=step + 1, rounded=bool(alpha.item()), scores=dev.score(net, alpha.item())[0])
            tick = time.time()
    log(trained_steps=A.steps, tokens=A.steps * A.rows * 512, passes=stream.shard)
    stream.pool.terminate()
    export.save(net.P, os.path.join(A.out, 'model.safetensors'))
    finish(net, dev, held, lexicon, tokenizer, log)


def finish(net, dev, held, lexicon, tokenizer, log):
    """Final scores: development sets and perplexity in both precisions, the whole lexicon, some answers."""
    import random

    import evaluate
    bf16, _ = dev.score(net, 0)
    q4, by_frame = dev.score(net, 1)
    ppl = {}
    for name, alpha in (('bf16', 0), ('4bit', 1)):
        nll = evaluate.measure(net, held, alpha)[1]
        ppl[name] = {k: round(math.exp(v), 4) for k, v in nll.items()}
    log(final_bf16=bf16)
    log(final_4bit=q4)
    log(heldout_perplexity=ppl)
    r, whole = random.Random(3), {}
    for q in ('define', 'example', 'synonym', 'antonym', 'kind', 'part_of_speech'):
        facts = [f for f in lexicon.facts if (q != 'example' or f['ex']) and (q != 'synonym' or f['syn']) and (q != 'antonym' or f['ant']) and (q != 'kind' or f['hyper'])]
        items = gen.encode(tokenizer, [gen.render(gen.turns_of(gen.qa(q, f['w'], f, r, lexicon, think=False))) for f in facts])
        wrong = evaluate.measure(net, evaluate.Packed(items, A.rows), 1)[0]
        whole[q] = round(100 * (wrong == 0).float().mean().item(), 2)
    log(whole_lexicon_4bit=whole)
    frames = {name: sorted(([f, a, n] for f, (a, n) in c.items()), key=lambda t: t[1] / t[2]) for name, c in by_frame.items() if any(c)}
    with open(os.path.join(A.out, 'scores.json'), 'w') as file:
        json.dump(dict(bf16=bf16, q4=q4, heldout_perplexity=ppl, whole_lexicon_4bit=whole, frames=frames), file, indent=1)
    asks = ['define heron', 'What is an atoll?', 'use frugal in a sentence', 'give me a synonym for quick', 'what kind of thing is a lute?', 'is a whale a fish?', 'is a whale a mammal?', 'is a dog an animal?', 'Is a tomato a fruit?',
            'define blorptic', 'whats the meaning of serendipity', 'hello', 'Who are you', 'can you write me a song?', 'what is the weather in Paris?', 'What does "volcano" mean', 'opposite of hot', 'herons', 'HERON', 'Heron', 'how do you use happy?',
            'I came across the word atoll in a book, what is it about?', 'under what heading would you file a violin?', 'what does it mean?', 'thanks, you were great', 'is a violin a musical instrument', 'what is the plural of heron', 'how do you pronounce heron', 'spell heron',
            'words that rhyme with cat', 'translate heron into French', 'is a heron blue', 'heron vs egret', 'tell me everything about herons']
    for s, o in zip(asks, evaluate.generate(net, tokenizer, [chatml.prompt([('user', s)]) for s in asks], 1)):
        log(ask=s, said=o)
    tool = chatml.tool_schema('dictionary_lookup', 'Look up a word in a dictionary.', {'lemma': {'type': 'string', 'description': 'The word'}}, ['lemma'])
    cases = [('think', 'define heron', True, None), ('think', 'is a whale a fish?', True, None), ('think', 'hello', True, None), ('tool', 'define heron', False, [tool]), ('tool', 'what is a zorblax?', False, [tool]),
             ('tool', 'hello', False, [tool]), ('tool+think', 'What does serendipity mean?', True, [tool])]
    for (kind, s, think, tools), o in zip(cases, evaluate.generate(net, tokenizer, [chatml.prompt([('user', s)], think, tools) for _, s, think, tools in cases], 1)):
        log(case=kind, ask=s, said=o)


if __name__ == '__main__':
    main()
