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

# The Debian packages of tests/engines, which starts a real Slurm. Without root or apt-get, or if that
# fails, its tests are skipped and say what is missing. No service of these packages is started.
install_engines() {
    local packages=(slurm-wlm munge etcd-server iproute2) policy=/usr/sbin/policy-rc.d
    [[ $EUID == 0 ]] && command -v apt-get >/dev/null || return 0
    dpkg -s "${packages[@]}" >/dev/null 2>&1 && return 0
    echo "installing ${packages[*]} (once)"
    mkdir -p build
    if [[ ! -e $policy ]]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    { apt-get update --quiet && DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes \
        --no-install-recommends "${packages[@]}"; } >build/engines.log 2>&1 ||
        echo "they cannot be installed here (build/engines.log): tests/engines is skipped"
    if [[ $(trap -p EXIT) == *policy-rc.d* ]]; then
        rm -f "$policy"
        trap - EXIT
    fi
}
