#!/usr/bin/env bash
# Builds here, for a machine with an NVIDIA GPU that has neither Rust nor a network, and packs what runs there.
#
#   tools/cuda_run.sh pack DIR              build; put the binaries, the golden results, the compiled kernels and the data into DIR
#   DIR/run.sh [RESULTS [SECTION...]]       on the GPU machine, everything in one call: kernels against the software GPU, whole
#                                           programs, speed, ablations, memory checks. A line a result; logs and JSON in RESULTS
#
# Packing needs NVRTC (pip install nvidia-cuda-nvrtc; name the library in LILY_NVRTC if it is not found) and a C++ compiler for
# the software GPU, whose results are the reference. ARCH (default 90) is the GPU's compute capability.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "${1:-}" = pack ] && [ -n "${2:-}" ] || { sed -n '2,11p' "$0" >&2; exit 2; }
dir=$2
arch=${ARCH:-90}
cargo build --release -p lily-gpu --example cuda
cargo build --release -p lily
mkdir -p "$dir/cache" "$dir/tiny"
cp target/release/examples/cuda target/release/lily "$dir/"
strip "$dir/cuda" "$dir/lily"
LILY_KERNEL_CACHE=$(realpath "$dir")/cache "$dir/cuda" compile "$arch"
"$dir/cuda" golden "$dir/golden.json"
cp -r crates/lily-model/tests/fixtures/tiny crates/lily-model/tests/fixtures/tiny_golden.* "$dir/tiny/"
cp models/lily-mini/heldout.json tools/tiny_logits.py "$dir/"
gzip -f "$dir/cuda" "$dir/lily" "$dir/golden.json" "$dir"/cache/*.cubin
cat >"$dir/run.sh" <<'RUN'
#!/usr/bin/env bash
# Everything that is measured on the GPU, in one call. RESULTS (default ./results) gets the logs and the JSON; SECTIONS are
# check, mini, serve, start, bench, kernels, prefill, compare, sanitize (all without any). SANITIZER names a compute-sanitizer other than
# the one in the path: racecheck before version 2026.4 (pip install nvidia-cuda-sanitizer-api) reports races that are none
# in kernels with mbarriers and wgmma.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "${1:-results}" && cd "${1:-results}" && pwd)
[ $# -gt 0 ] && shift
sections=${*:-check mini serve start bench kernels prefill compare sanitize}
work=$(mktemp -d)
cp -r "$here/." "$work"
cd "$work"
gunzip -f ./*.gz cache/*.gz
chmod +x cuda lily
export LILY_KERNEL_CACHE=$PWD/cache
failed=0
# step NAME SECONDS COMMAND...: runs it with a limit, its output in NAME.log
step() {
  local name=$1 limit=$2 from=$EPOCHREALTIME
  shift 2
  if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then state=ok; else state="FAILED ($?)"; failed=1; fi
  printf -- '-- %s: %s, %.1f s\n' "$name" "$state" "$(python3 -c "print($EPOCHREALTIME - $from)")"
}
for section in $sections; do
  case $section in
    check)
      step check 150 ./cuda check golden.json
      grep -e BAD -e 'largest relative' -e '^prefill' "$out/check.log" ;;
    mini)
      step selftest 120 ./lily selftest --device cuda --report "$out/selftest.txt"
      tail -n 4 "$out/selftest.log"
      for n in short long one; do
        python3 tiny_logits.py ids tiny/tiny_golden.json $n >ids.json
        step "tiny-$n" 60 ./lily logits --device cuda --tokens ids.json --out "tiny-$n.safetensors" --decode 32 tiny/tiny
      done
      step tiny 30 python3 tiny_logits.py compare tiny/tiny_golden.json tiny/tiny_golden.safetensors tiny-{short,long,one}.safetensors
      cat "$out/tiny.log"
      step eval 200 ./lily eval lily-mini --device cuda --tokens heldout.json --json "$out/eval-cuda.json"
      tail -n 6 "$out/eval.log" ;;
    serve)
      ./lily serve --device cuda --port 8099 >"$out/serve.log" 2>&1 &
      server=$!
      for _ in $(seq 100); do curl -fs localhost:8099/v1/models >/dev/null && break; sleep 0.1; done
      curl -fsS localhost:8099/v1/chat/completions -H 'content-type: application/json' -d \
        '{"model":"lily-mini","temperature":0,"max_tokens":64,"messages":[{"role":"user","content":"define heron"}]}' || failed=1
      echo
      kill $server
      wait $server ;;
    start)
      # From the start of the process to the first token and its end; weights of 19 MiB, kernels cached.
      for i in 1 2 3 4 5; do step "start-$i" 60 ./lily run --device cuda --temperature 0 --max-tokens 1 'define heron'; done ;;
    bench)
      step bench 280 ./lily --log info bench --device cuda --synthetic qwen3.6-35b-a3b --contexts "${CONTEXTS:-256,4096,32768,131072}" \
        --repeats 1 --json "$out/bench.json" --csv "$out/bench.csv" --svg "$out/bench.svg"
      tail -n 14 "$out/bench.log" ;;
    kernels)
      step kernels 280 ./cuda bench 40 256,4096,32768,131072 "$out/kernels.json" "${PARTS:-decode,batch,options,ablation}"
      grep -v '^   ids' "$out/kernels.log" ;;
    prefill)
      step prefill 120 ./cuda prefill 40 "${PROMPTS:-512,2048,8192,32768,131072}" "$out/prefill.json"
      grep 'a prompt of' "$out/prefill.log" ;;
    compare)
      step compare 280 ./cuda compare "${COMPARE:-1,300,5000,40000}"
      cat "$out/compare.log" ;;
    sanitize)
      tool=${SANITIZER:-compute-sanitizer}
      if command -v "$tool" >/dev/null; then
        "$tool" --version | tail -n 1
        step memcheck 150 "$tool" --tool memcheck --error-exitcode 1 ./cuda steps
        tail -n 2 "$out/memcheck.log"
        # By kernels, side by side: those of several sequences were not done in a minute. Of native_project_norm the ninth launch is the first
        # head, the only one that fills its stages again.
        race() {
          local name=$1 options=$2
          step "race-$name" 300 "$tool" --tool racecheck --error-exitcode 1 --num-cuda-barriers 64 $options ./cuda steps
          grep -e '=========     ' -e 'RACECHECK' "$out/race-$name.log" | sort | uniq -c | sort -rn | head -n 8
        }
        race head "--kernel-name kernel_substring=native_project_norm --launch-skip 8 --launch-count 1" &
        race project "--kernel-name kernel_substring=native_project --launch-count 8" &
        for k in native_moe native_gdn native_attention native_router hopper_gemm hopper_experts hopper_shared hopper_attention hopper_split; do
          race "$k" "--kernel-name kernel_substring=$k" &
        done
        for k in native_batch_norm native_batch_add native_batch_gate native_batch_down; do
          race "$k" "--kernel-name kernel_substring=$k --launch-count 2" &
        done
        wait
        grep -L 'RACECHECK SUMMARY: 0 hazards' "$out"/race-*.log | grep . && failed=1
      else
        echo "-- no $tool: skipped"
      fi ;;
    *) echo "no section $section"; failed=1 ;;
  esac
done
exit $failed
RUN
chmod +x "$dir/run.sh"
du -sh "$dir"
