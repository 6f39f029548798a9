#!/usr/bin/env bash
# Checks kernel sources without a GPU: our lints and clang-19 as a strict type checker, as Metal 3.2 and as Metal 4 (which has
# tensor operations besides), NVRTC for three generations of NVIDIA GPUs. What is missing is an error that says how to install
# it.
#
#   tools/check_kernels.sh [FILE.metal ...]        (default: kernels/all.metal, which includes every other)
#
# Needs clang-19 (Debian: apt-get install clang-19) and the Python package nvidia-cuda-nvrtc for the interpreter
# named by PYTHON (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

command -v clang-19 >/dev/null || { echo "missing: clang-19 (apt-get install clang-19)" >&2; exit 1; }
"$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("nvidia") is None)' ||
  { echo "missing: $python -m pip install nvidia-cuda-nvrtc" >&2; exit 1; }

files=("$@")
[ ${#files[@]} -gt 0 ] || files=(kernels/all.metal)
for file in kernels/*.metal; do
  name=${file#kernels/}
  [ "$name" = all.metal ] || grep -qx "#include \"$name\"" kernels/all.metal ||
    { echo "kernels/all.metal does not include $name" >&2; exit 1; }
done
[ -e "${files[0]}" ] || { echo "no kernel sources: ${files[*]}" >&2; exit 1; }

cargo build --quiet --release -p lily-msl --example translate
translate=target/release/examples/translate
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# The flags are those of lily_msl::emit::STRICT_FLAGS.
strict=(-x clcpp -fsyntax-only -cl-std=clc++2021 -target x86_64-linux-gnu -cl-no-stdinc
  -Xclang -cl-single-precision-constant -Werror=implicit-float-conversion -Wno-null-dereference
  -Wno-unknown-attributes)

failed=0
for file in "${files[@]}"; do
  name=$(basename "$file" .metal)
  for version in 320 400; do
    "$translate" lint "$file" $version || { failed=1; continue 2; }
    if "$translate" strict "$file" $version >"$out/$name.clcpp" && clang-19 "${strict[@]}" "$out/$name.clcpp"; then
      echo "$name.metal: types checked as Metal ${version:0:1}.${version:1:1}"
    else
      failed=1
    fi
  done
  "$translate" cuda "$file" >"$out/$name.cu" || { failed=1; continue; }
  for arch in sm_80 sm_90 sm_120; do
    "$python" tools/nvrtc_compile.py "$out/$name.cu" "$arch" | sed "s|$out/||" || failed=1
  done
done
exit $failed
