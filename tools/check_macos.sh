#!/usr/bin/env bash
# Type check, clippy and link of the real `lily` for Apple silicon, on any machine: needs rustup and Python 3, no Mac and
# no SDK of Apple's. Zig (PyPI's ziglang) links, with the stubs of tools/macos/sdk for what Zig does not bring itself.
#
#   PYTHON=python3 tools/check_macos.sh
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
work=target/macos
python=${PYTHON:-python3}

command -v rustup >/dev/null || { echo "missing: rustup, which brings the standard library for $target" >&2; exit 1; }
rustup target add "$target" 2>/dev/null || rustup target add "$target"

mkdir -p "$work"
if ! "$python" -c 'import ziglang' 2>/dev/null; then
  [ -x "$work/venv/bin/python" ] || "$python" -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -c 'import ziglang' 2>/dev/null || "$python" -m pip install --quiet ziglang
fi
python=$(command -v "$python")
case $python in /*) ;; *) python=$PWD/$python ;; esac

# rustc and cc name target and SDK in Apple's way; Zig has its own.
cat >"$work/cc" <<WRAPPER
#!/usr/bin/env bash
args=()
while [ \$# -gt 0 ]; do
  case "\$1" in
    -arch | -target | -isysroot) shift 2 ;;
    --target=* | -mmacosx-version-min=* | -mmacos-version-min=*) shift ;;
    *) args+=("\$1"); shift ;;
  esac
done
export ZIG_GLOBAL_CACHE_DIR="$PWD/$work/zig" ZIG_LOCAL_CACHE_DIR="$PWD/$work/zig"
exec "$python" -m ziglang cc -target aarch64-macos.11.0-none \\
  -F "$PWD/tools/macos/sdk/System/Library/Frameworks" -L "$PWD/tools/macos/sdk/usr/lib" "\${args[@]}"
WRAPPER
printf '#!/bin/sh\nexec "%s" -m ziglang ar "$@"\n' "$python" >"$work/ar"
chmod +x "$work/cc" "$work/ar"

export CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=$PWD/$work/cc
export CC_aarch64_apple_darwin=$PWD/$work/cc AR_aarch64_apple_darwin=$PWD/$work/ar
# Nothing is looked up in an SDK; the variable keeps rustc from asking Xcode where one is.
export SDKROOT=$PWD/tools/macos/sdk

# The crates with code for one system or processor only; the link below checks the others' types.
cargo clippy --release --locked --target "$target" -p lily-gpu -p lily-cpu -- -D warnings
cargo build --release --locked --target "$target" -p lily

"$python" - "target/$target/release/lily" <<'PY'
import struct, sys

path = sys.argv[1]
data = open(path, "rb").read()
magic, cpu, _, kind, commands, _, _, _ = struct.unpack_from("<8I", data)
assert magic == 0xFEEDFACF, f"{path}: not a 64-bit Mach-O file"
assert cpu == 0x0100000C, f"{path}: not for arm64"
assert kind == 2, f"{path}: not an executable"
libraries, version, at = [], None, 32
for _ in range(commands):
    command, size = struct.unpack_from("<2I", data, at)
    if command & 0x7FFFFFFF in (0xC, 0x18):  # a library that must, or may, be there
        name = at + struct.unpack_from("<I", data, at + 8)[0]
        libraries.append(data[name : data.index(b"\0", name)].decode())
    if command == 0x32:  # the system it was built for
        platform, oldest = struct.unpack_from("<2I", data, at + 8)
        version = (platform, oldest >> 16, oldest >> 8 & 255)
    at += size
assert version and version[0] == 1, f"{path}: not for macOS"
wanted = {"Metal", "Foundation", "CoreGraphics", "libobjc.A.dylib", "libSystem.B.dylib"}
missing = wanted - {library.rsplit("/", 1)[1] for library in libraries}
assert not missing, f"{path}: not linked with {sorted(missing)}"
print(f"{path}: {len(data)} bytes, Mach-O arm64, macOS {version[1]}.{version[2]} and later, {len(libraries)} libraries")
PY
