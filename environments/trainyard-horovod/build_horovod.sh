# Rendered from templates/environments/trainyard-horovod/build_horovod.sh.j2 and profiles/t4.yaml: edit those, then run `trainyard render t4`.
# Build Horovod 0.28.1 from its source on PyPI, and install it for a Python that has torch:
#
#     bash build_horovod.sh PYTHON
#
# It needs g++, CMake and Open MPI's headers; 2 to 5 minutes on two cores. With CUDA_HOME set, NCCL sums gradients on GPUs.
# The release is of 2023. Two things have changed since: torch's headers are C++17 (from 2.1 on), and setuptools
# no longer has pkg_resources (from 81 on).
set -euo pipefail
python=${1:?"the Python to install Horovod for: bash build_horovod.sh .venv/bin/python"}
if "$python" -c 'import horovod.torch' 2>/dev/null; then
  exit 0
fi
missing=""
for program in g++ cmake mpicxx; do
  command -v "$program" >/dev/null || missing="$missing $program"
done
# openmpi-bin alone brings mpicxx too, without headers.
if [ -z "$missing" ] && ! echo '#include <mpi.h>' | mpicxx -x c++ -fsyntax-only - 2>/dev/null; then
  missing=" mpi.h"
fi
if [ -n "$missing" ]; then
  echo "error: building Horovod needs$missing; on Debian and Ubuntu: apt install g++ cmake libopenmpi-dev openmpi-bin" >&2
  exit 2
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pip=("$python" -m pip --quiet --disable-pip-version-check)
# Beside what is installed, and only for the build.
"${pip[@]}" install --target "$folder/tools" 'setuptools==80.10.2' 'wheel==0.48.0'
export PYTHONPATH="$folder/tools"
"${pip[@]}" download --no-deps --no-build-isolation --no-binary horovod --dest "$folder" horovod==0.28.1
tar --extract --gzip --file "$folder/horovod-0.28.1.tar.gz" --directory "$folder"
cd "$folder/horovod-0.28.1"
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' CMakeLists.txt horovod/torch/CMakeLists.txt
if [ -n "${CUDA_HOME:-}" ]; then
  export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME="$CUDA_HOME"
fi
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
"${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$folder" .
cd "$folder"
unset PYTHONPATH
# Without dependencies: cloudpickle, psutil, pyyaml and packaging come with what Trainyard's steps import.
"${pip[@]}" install --no-deps horovod-0.28.1-*.whl
"$python" -c 'import horovod.torch'
