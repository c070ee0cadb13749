#!/bin/sh
# Builds and runs the C++ tests of the engine core: run.sh [asan|tsan]. DYNACT_LLAMA_HEADERS names the headers' folder,
# BUILD (optional) where to build.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${DYNACT_LLAMA_HEADERS:?names the folder of the llama.cpp headers}"
kind=${1:-plain}
case $kind in
  asan) sanitize=address ;;
  tsan) sanitize=thread ;;
  plain) sanitize= ;;
  *) echo "run.sh [asan|tsan]" >&2; exit 2 ;;
esac
build=${BUILD:-$here/build/test-$kind}
cmake -S "$here" -B "$build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DDYNACT_SANITIZE="$sanitize" \
  -DDYNACT_LLAMA_HEADERS="$DYNACT_LLAMA_HEADERS" >/dev/null
cmake --build "$build" --parallel 2 >/dev/null
"$build/pool_test"
"$build/engine_test"
