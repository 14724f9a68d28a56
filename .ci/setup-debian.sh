#!/usr/bin/env bash
# Makes sure that the system packages `make` needs are there; called by the Makefile, which
# names the stage. Installs with apt-get what is missing, and only that; where there is no
# apt-get, or no right to use it, says what to install and fails.
#
#   .ci/setup-debian.sh build PYTHON    interpreter with venv and headers, C compiler, PCRE2, LZ4
#   .ci/setup-debian.sh test            client libraries of other languages, what runs them, etcd, a browser
#   .ci/setup-debian.sh binary          libraries and compilers for the executable (make binary)
#   .ci/setup-debian.sh cross arm64     compilers for another processor, and what runs its programs
#   .ci/setup-debian.sh packages        what makes, checks and tries packages (make deb, rpm, repo)
#   .ci/setup-debian.sh fuzz            clang, whose coverage libFuzzer reads
#   .ci/setup-debian.sh bench           RabbitMQ, which the broker is compared with; it is not started
set -euo pipefail

stage=${1:?usage: setup-debian.sh build PYTHON | test | binary | cross ARCHITECTURE | packages | fuzz | bench}
python=python3
[ "$stage" != build ] || python=${2:-python3}
missing=()
unpacked=()

has() { command -v "$1" >/dev/null 2>&1; }
there() { test -e "$1"; }
java_says_17() {
    has java && [ "$(java -XshowSettings:properties -version 2>&1 \
        | sed -n 's/.*java\.specification\.version = //p' | cut -d. -f1)" -ge 17 ]
}
python_says() { "$python" -c "$1" >/dev/null 2>&1; }

# Debian's package of this interpreter; one that does not run yet is called as it was asked for.
name=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null) \
    || name=${python##*/}

case $stage in
build)
    python_says 'import sys; sys.exit(sys.version_info < (3, 11))' || missing+=("$name")
    python_says 'import venv, ensurepip' || missing+=("$name-venv")
    python_says 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' \
        || missing+=("$name-dev")
    # gcc alone brings no C headers: libc6-dev is a mere recommendation.
    compiler=${CC:-cc}
    has "${compiler%% *}" || missing+=(gcc libc6-dev)
    there /usr/include/pcre2.h || missing+=(libpcre2-dev)
    there /usr/include/lz4.h || missing+=(liblz4-dev)
    there /usr/include/openssl/ssl.h || missing+=(libssl-dev)
    ;;
test)
    has node || missing+=(nodejs)
    has npm || missing+=(npm)
    has amqp-publish || missing+=(amqp-tools)
    has mosquitto_pub || missing+=(mosquitto-clients)
    has paho_c_pub || missing+=(paho.mqtt.c-examples)
    has go || missing+=(golang-go)
    there /usr/share/gocode/src/github.com/rabbitmq/amqp091-go \
        || missing+=(golang-github-rabbitmq-amqp091-go-dev)
    # The compiler is part of the run-time image; only its launcher javac is in the JDK's package.
    # Spark needs 17 or later, which is what Debian 12 calls its default.
    java_says_17 || missing+=(default-jre-headless)
    there /usr/share/java/amqp-client.jar || missing+=(librabbitmq-client-java)
    has php || missing+=(php-cli)
    there /usr/share/php/PhpAmqpLib || missing+=(php-amqplib)
    has ruby || missing+=(ruby)
    ruby -e 'gem "bunny"' >/dev/null 2>&1 || missing+=(ruby-bunny)
    has promtool || missing+=(prometheus)
    # Nodes of clusters agree by it.
    there /usr/bin/etcd || missing+=(etcd-server)
    has rabbitmqadmin || unpacked+=(rabbitmq-server)
    # For certificates, manual pages and completion.
    has openssl || missing+=(openssl)
    has groff || missing+=(groff-base)
    has zsh || missing+=(zsh)
    has fish || missing+=(fish)
    # The management pages are tried in it.
    has chromium || has chromium-browser || has google-chrome || missing+=(chromium)
    ;;
binary)
    has make || missing+=(make)
    has dpkg-source || missing+=(dpkg-dev)
    has objcopy || missing+=(binutils)
    there /usr/include/openssl/evp.h || missing+=(libssl-dev)
    there /usr/include/zlib.h || missing+=(zlib1g-dev)
    there /usr/include/pcre2.h || missing+=(libpcre2-dev)
    there /usr/include/lz4.h || missing+=(liblz4-dev)
    there /usr/include/ffi.h || ls /usr/include/*/ffi.h >/dev/null 2>&1 || missing+=(libffi-dev)
    # The package called rustc is too old for orjson; this one is what browsers are built with.
    has cargo || missing+=(cargo-web)
    ;;
cross)
    case ${2:-arm64} in
    arm64) machine=aarch64 ;;
    amd64) machine=x86_64 ;;
    *) echo "setup-debian.sh: there is no executable for '$2'" >&2; exit 2 ;;
    esac
    has "$machine-linux-gnu-gcc" || missing+=("gcc-${machine/_/-}-linux-gnu")
    # Only this compiler of Rust can use the library for another processor that Debian has.
    there /usr/bin/rustc || missing+=(rustc-web)
    # What has been built is run: for its version, and by the tests.
    has "qemu-$machine-static" || missing+=(qemu-user-static)
    ;;
packages)
    has dh || missing+=(debhelper)
    has lintian || missing+=(lintian)
    has rpmbuild || missing+=(rpm)
    has rpmlint || missing+=(rpmlint)
    has gpg || missing+=(gpg)
    has apt-ftparchive || missing+=(apt-utils)
    has createrepo_c || missing+=(createrepo-c)
    has debootstrap || missing+=(debootstrap)
    has systemd-nspawn || missing+=(systemd-container)
    has dnf || missing+=(dnf)
    has perf || missing+=(linux-perf)
    has gdb || missing+=(gdb)
    has apparmor_parser || missing+=(apparmor)
    has checkmodule || missing+=(checkpolicy)
    has semodule_package || missing+=(semodule-utils)
    has skopeo || missing+=(skopeo)
    has podman || missing+=(podman)
    has runc || missing+=(runc)
    ;;
fuzz)
    has clang || missing+=(clang)
    ;;
bench)
    there /usr/lib/rabbitmq/bin/rabbitmq-server || missing+=(rabbitmq-server)
    ;;
*)
    echo "setup-debian.sh: unknown stage '$stage'" >&2
    exit 2
    ;;
esac

[ $((${#missing[@]} + ${#unpacked[@]})) -gt 0 ] || exit 0

if ! has apt-get; then
    echo "Missing: ${missing[*]} ${unpacked[*]} (Debian's names). Install them, or choose another" \
        "interpreter with 'make PYTHON=python3.12'; Python 3.11 or later is needed." >&2
    exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    has sudo || { echo "Missing: ${missing[*]} ${unpacked[*]}. Run as root: $0 $*" >&2; exit 1; }
    as_root=(sudo)
fi

echo "Installing missing system packages: ${missing[*]} ${unpacked[*]}"
"${as_root[@]}" apt-get update -q
folder=$(mktemp -d)
policy=
clean() {
    rm -rf "$folder"
    [ -z "$policy" ] || "${as_root[@]}" rm -f "$policy"
}
trap clean EXIT
if [ ! -e /usr/sbin/policy-rc.d ]; then
    # Else RabbitMQ's package starts a broker on our ports, others an etcd or a Prometheus.
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install -m 755 /dev/stdin $policy
fi
if [ ${#missing[@]} -gt 0 ]; then
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
fi
# Installed, the package would bring Erlang: one script is wanted.
if [ ${#unpacked[@]} -gt 0 ]; then
    (cd "$folder" && apt-get download -q "${unpacked[@]}")
    dpkg-deb --fsys-tarfile "$folder"/rabbitmq-server_*.deb \
        | tar -x -O --wildcards '*/www/cli/rabbitmqadmin' >"$folder/rabbitmqadmin"
    "${as_root[@]}" install -m 755 "$folder/rabbitmqadmin" /usr/local/bin/rabbitmqadmin
fi

if [ "$stage" = build ] && ! python_says 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is missing, or older than Python 3.11; choose another one: make PYTHON=python3.12" >&2
    exit 1
fi
