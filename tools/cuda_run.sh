#!/usr/bin/env bash
# Builds here, for a machine with an NVIDIA GPU that has neither Rust nor a network, and packs what runs there.
#
#   tools/cuda_run.sh pack DIR     build; put the binaries, the golden results and the compiled kernels into DIR
#   DIR/run.sh [RESULTS]           on the GPU machine: check every kernel, measure decoding, memory checks, lily-mini
#
# Packing needs NVRTC (pip install nvidia-cuda-nvrtc; name the library in LILY_NVRTC if it is not found) and a C++ compiler for
# the software GPU, whose results are the reference. ARCH (default 90) is the GPU's compute capability.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "${1:-}" = pack ] && [ -n "${2:-}" ] || { sed -n '2,10p' "$0" >&2; exit 2; }
dir=$2
arch=${ARCH:-90}
cargo build --release -p lily-gpu --example cuda
cargo build --release -p lily
mkdir -p "$dir/cache"
cp target/release/examples/cuda target/release/lily "$dir/"
strip "$dir/cuda" "$dir/lily"
LILY_KERNEL_CACHE=$(realpath "$dir")/cache "$dir/cuda" compile "$arch"
"$dir/cuda" golden "$dir/golden.json"
cat >"$dir/run.sh" <<'RUN'
#!/usr/bin/env bash
# Everything that is measured on the GPU, in one call. RESULTS (default ./results) gets the logs and the JSON.
set -uo pipefail
cd "$(dirname "$0")"
out=${1:-$PWD/results}
mkdir -p "$out"
export LILY_KERNEL_CACHE=$PWD/cache
failed=0
timeout 120 ./cuda check golden.json >"$out/check.log" 2>&1 || failed=1
tail -n 3 "$out/check.log"
timeout 200 ./cuda bench 40 256,4096,32768,131072 "$out/bench.json" >"$out/bench.log" 2>&1 || failed=1
cat "$out/bench.log"
timeout 100 ./lily eval lily-mini --device cuda --json "$out/eval-cuda.json" >"$out/eval.log" 2>&1 || failed=1
tail -n 12 "$out/eval.log"
if command -v compute-sanitizer >/dev/null; then
  timeout 100 compute-sanitizer --tool memcheck ./cuda check golden.json >"$out/memcheck.log" 2>&1 || failed=1
  tail -n 1 "$out/memcheck.log"
fi
exit $failed
RUN
chmod +x "$dir/run.sh"
du -sh "$dir"
