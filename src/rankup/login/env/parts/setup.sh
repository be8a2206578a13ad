# Makes venv/ from requirements.txt, or from requirements.lock where that is there, and, for the
# kind `modules`, from modules.sh:
#     bash setup.sh         make it, or bring it up to date; what has not changed is not done again
#     bash setup.sh lock    write requirements.lock: versions and hashes of what would be installed
# Run it where there is a network: on a login node.

if [ "${BASH_SOURCE[0]}" != "$0" ]; then
    echo "setup.sh is not to be sourced; run: bash ${BASH_SOURCE[0]}" >&2
    return 1
fi
set -euo pipefail
unset -v CDPATH
here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
cd -- "$here"
venv=$here/venv

say() { printf '%s\n' "setup.sh: $*"; }
fail() {
    printf '%s\n' "setup.sh: $*" >&2
    exit 1
}

case ${1-} in
'' | lock) ;;
*) fail "it takes no word but lock, and got '$1'" ;;
esac
case $here in
*[:\$\`\"\\[:cntrl:]]*)
    # The activate of Python's own venv has the path between double quotes.
    fail "$(printf %q "$here"): the path has a ':', which cannot stand in PATH, or one of \$ \` \" \\ or" \
        "a control character, which venv's own activate would run; choose another folder"
    ;;
esac

