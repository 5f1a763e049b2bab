#!/usr/bin/env bash
# Makes a certificate to try mutual TLS with, and a CA of its own: launch/make-certs.sh FOLDER [HOST...]
#
#     --tls-ca FOLDER/ca.pem --tls-cert FOLDER/cert.pem --tls-key FOLDER/key.pem
#
# All processes of a job, and the status command, may use these three files.  A HOST is a name or an address at which
# one of them is called; the coordinator's has to be there.  Default: localhost 127.0.0.1 ::1.
# The CA's key is not kept, so nobody can make another certificate that the job would accept.
set -eu
umask 077  # keys are for their owner alone
days=365

fail() {
    echo "launch/make-certs.sh: $1" >&2
    exit 2
}

case ${1:-} in "" | -*) fail "usage: launch/make-certs.sh FOLDER [HOST...]" ;; esac
command -v openssl >/dev/null || fail "openssl is not installed"
folder=$1
shift
[ $# -gt 0 ] || set -- localhost 127.0.0.1 ::1
names=
for host in "$@"; do
    case $host in
        "" | *[!0-9A-Za-z.:-]*) fail "'$host' is neither a name nor an address" ;;
        *:*) kind=IP ;;
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    names=$names${names:+,}$kind:$host
done

mkdir "$folder" 2>/dev/null || fail "folder $folder cannot be made; does it exist?  Nothing is written over"
cd "$folder"
made=
trap '[ "$made" ] || rm -rf "$PWD"' EXIT

cat >config <<END
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[cert]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = $names
END
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config config)
ca=(-extensions ca -subj "/CN=psruntime trial CA" -days $days)
sign=(-CA ca.pem -CAkey ca-key.pem -set_serial "0x$(openssl rand -hex 16)" -extfile config -extensions cert -days $days)
{
    openssl req -x509 "${new_key[@]}" "${ca[@]}" -keyout ca-key.pem -out ca.pem &&
        openssl req "${new_key[@]}" -subj /CN=psruntime -keyout key.pem -out request.pem &&
        openssl x509 -req -in request.pem -out cert.pem "${sign[@]}"
} 2>messages || { cat messages >&2; fail "openssl refuses, as it says above"; }
rm -f ca-key.pem request.pem config messages
made=yes
echo "made ca.pem, cert.pem and key.pem in $folder, for $*, good for $days days"
