echo "compiler of $(basename "$(dirname "${BASH_SOURCE[0]}")")"
export COMPILER_OF_THE_VIEW=gcc
export PATH=$(dirname "${BASH_SOURCE[0]}")/bin:$PATH
