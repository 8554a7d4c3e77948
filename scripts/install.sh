# Sourced by the scripts beside it, in the repository's root: .venv with ftrun and one of its extras.
# PYTHON chooses the interpreter of a new .venv (3.10 or newer).

install_ftrun() {
    local extra="$1" stamp=".venv/.ftrun-$1"
    if [[ ! -x .venv/bin/python ]]; then
        echo "making .venv with $("${PYTHON:-python3}" --version)"
        "${PYTHON:-python3}" -m venv .venv
    fi
    # Once is enough, until what is to be installed changes.
    if [[ ! -e $stamp || pyproject.toml -nt $stamp || constraints.txt -nt $stamp ]]; then
        echo "installing ftrun[$extra] (once)"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check \
            -c constraints.txt -e ".[$extra]"
        touch "$stamp"
    fi
}
