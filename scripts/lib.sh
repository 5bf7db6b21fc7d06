# Shared by scripts/serve and scripts/test: install what is missing, configure, build. Sourced, not run.
# shellcheck shell=bash

say() {
    printf '%s\n' "$*" >&2
}

# Debian package, the file that proves it is there, and why it is needed: one line each.
build_needs() {
    cat <<'LIST'
gcc|cc:gcc|C compiler
meson|cc:meson|build system
ninja-build|cc:ninja|build system
pkg-config|cc:pkg-config|finds the libraries below
libc6-dev|h:stdio.h|C library headers
libevent-dev|h:event2/event.h|HTTP server
libinih-dev|h:ini.h|configuration files
liblua5.4-dev|h:lua5.4/lua.h|policy scripts
libjansson-dev|h:jansson.h|JSON
libpcre2-dev|h:pcre2.h|tokenizer pre-split
libxxhash-dev|h:xxhash.h|prefix keys
zlib1g-dev|h:zlib.h|compressed traces
libcmocka-dev|h:cmocka.h|unit tests
LIST
}

test_needs() {
    build_needs
    cat <<'LIST'
g++|cc:g++|device code compiled for the host
clang|cc:clang|second compiler, fuzzing
libclang-rt-14-dev|f:/usr/lib/llvm-14/lib/clang/14*/lib/linux/libclang_rt.fuzzer-x86_64.a|fuzzing runtime
python3|cc:/usr/bin/python3|test clients
python3-numpy|f:/usr/lib/python3/dist-packages/numpy/__init__.py|double-precision reference
curl|cc:curl|test client
nodejs|cc:node|the OpenAI client and the tokenizer oracle
npm|cc:npm|installs them
shellcheck|cc:shellcheck|checks the scripts
binutils|cc:nm|checks what plugins export
chromium|cc:chromium|shows the pages
chromium-driver|cc:chromedriver|tells it what to show
LIST
}

# present KIND:WHAT -> 0 when it is there
present() {
    case $1 in
    cc:*) command -v "${1#cc:}" >/dev/null 2>&1 ;;
    h:*) [ -e "/usr/include/${1#h:}" ] || compgen -G "/usr/include/*/${1#h:}" >/dev/null ;;
    f:*) compgen -G "${1#f:}" >/dev/null ;;
    esac
}

# install_missing FUNCTION: reads FUNCTION's list, installs with apt what is not there.
install_missing() {
    local pkg probe why missing=()
    while IFS='|' read -r pkg probe why; do
        if ! present "$probe"; then
            missing+=("$pkg")
            say "missing: $pkg ($why)"
        fi
    done < <("$1")
    if [ ${#missing[@]} -eq 0 ]; then
        return 0
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        say "error: no apt-get here; install the packages above by hand and run this again"
        return 1
    fi
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            say "error: not root and no sudo; run as root: apt-get install ${missing[*]}"
            return 1
        fi
        sudo=(sudo)
    fi
    say "installing: ${missing[*]}"
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >/tmp/kedge-apt.$$.log 2>&1 || {
        tail -20 /tmp/kedge-apt.$$.log >&2
        say "error: apt-get failed (whole log: /tmp/kedge-apt.$$.log)"
        return 1
    }
    rm -f /tmp/kedge-apt.$$.log
}

# build DIR [meson options...]: configures once, builds $build_targets, or what the tests of
# $build_suites need (both empty: everything); quiet unless it fails. The C++ compiler of the tests is
# the one that goes with $CC.
build_targets=()
build_suites=()
build() {
    local dir=$1 log targets=("${build_targets[@]}")
    shift
    if [ -n "${CC:-}" ] && [ -z "${CXX:-}" ]; then
        local -x CXX=${CC/gcc/g++}
        CXX=${CXX/%clang/clang++}
    fi
    log=$(mktemp /tmp/kedge-build.XXXXXX)
    if [ ! -f "$dir/build.ninja" ]; then
        meson setup "$dir" "$@" >"$log" 2>&1 || {
            cat "$log" >&2
            return 1
        }
    fi
    if [ ${#build_suites[@]} -gt 0 ]; then
        ninja -C "$dir" build.ninja >"$log" 2>&1 || { # its list of tests may be an older one
            cat "$log" >&2
            return 1
        }
        mapfile -t targets < <(scripts/test-targets "$dir" "${build_suites[@]}")
    fi
    ninja -C "$dir" "${targets[@]}" >"$log" 2>&1 || {
        tail -60 "$log" >&2
        say "error: the build in $dir failed (whole log: $log)"
        return 1
    }
    rm -f "$log"
}
