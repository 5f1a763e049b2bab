#!/usr/bin/env bash
# A network of WireGuard between the machines of a job, by ssh: launch/wireguard.sh HOSTS [options]
#
#     launch/wireguard.sh a,b,c                     makes it, or adds to it; prints a=10.98.0.1,b=10.98.0.2,c=10.98.0.3
#     launch/ssh.sh "$(launch/wireguard.sh a,b,c)" --ps 2 --model my_model
#     launch/wireguard.sh --down a,b,c              removes it, with the keys
#
# HOSTS is a list with commas, or a file with hosts and comments after #.  A host is [USER@]NAME, with the name by which
# the machines reach each other; USER is root or may run `sudo -n bash`.  Each machine needs wireguard-tools, and UDP has
# to pass between them at the port.
#
#     --network A.B.C         first three numbers of the addresses (default: 10.98.0)
#     --port N                of UDP (default: 51820)
#
# The interface is wg-psruntime: tensors travel over it encrypted, and an address is of the machine that has its key.  Each
# private key is made on its machine, and stays there.  The files are in /etc/wireguard, and systemd starts the interface at
# boot.  The addresses are those for ssh.sh, for the members of psruntime.nft and for --host; a process that has one of them
# is reached at --interface wg-psruntime alone.
#
# From the environment: SSH, the client with its options (default: ssh -o BatchMode=yes -o ConnectTimeout=10).

set -u

# On a machine, as root, by bash; $1 says what.
# shellcheck disable=SC2016
REMOTE='
set -e
umask 077
name=wg-psruntime
if ! command -v wg >/dev/null || ! command -v wg-quick >/dev/null; then
    echo "wg and wg-quick are not installed: apt-get install wireguard-tools" >&2
    exit 2
fi
mkdir -p /etc/wireguard
cd /etc/wireguard
boots() { [ ! -d /run/systemd/system ] || systemctl "$1" --quiet "wg-quick@$name"; }
case $1 in
    key)
        [ -s $name.key ] || wg genkey >$name.key
        wg pubkey <$name.key
        ;;
    up) # with all but the private key on stdin
        { echo "[Interface]" && echo "PrivateKey = $(cat $name.key)" && cat; } >$name.new
        if ip link show $name >/dev/null 2>&1 && grep -qxF "$(grep ^Address $name.new)" $name.conf; then
            mv $name.new $name.conf
            wg syncconf $name <(wg-quick strip $name)
        else
            if ip link show $name >/dev/null 2>&1; then wg-quick down $name; fi
            mv $name.new $name.conf
            wg-quick up $name
        fi 2>messages || { cat messages >&2; exit 1; }
        rm messages
        boots enable
        ;;
    check) # that the others answer, of which the addresses follow
        for ((tries = 0; tries < 10; tries++)); do
            for address in "${@:2}"; do echo >"/dev/udp/$address/9" || true; done 2>/dev/null
            wg show $name latest-handshakes | grep -q "[[:space:]]0$" || exit 0
            sleep 1
        done
        silent=$(wg show $name latest-handshakes | sed -n "s/[[:space:]]0$//p")
        wg show $name endpoints | grep -F "$silent" | while read -r _ endpoint; do
            echo "nothing answers at $endpoint; does UDP pass?" >&2
        done
        exit 1
        ;;
    down)
        if ip link show $name >/dev/null 2>&1; then wg-quick down $name 2>messages || { cat messages >&2; exit 1; }; fi
        boots disable
        rm -f $name.conf $name.key $name.new messages
        ;;
esac
'

fail() {
    echo "launch/wireguard.sh: $1" >&2
    exit "${2:-2}"
}

on() { # HOST WORD...: what REMOTE does there
    local words
    printf -v words '%q ' "${@:2}"
    "${ssh[@]}" "$1" "exec \$([ \$(id -u) = 0 ] || echo sudo -n) bash -c '$REMOTE' bash $words" ||
        fail "$1 is not ready, as it says above" 1
}

interface() { # INDEX: what its file has besides the private key
    local peer endpoint
    printf 'Address = %s/24\nListenPort = %s\n' "${addresses[$1]}" "$port"
    for peer in "${!hosts[@]}"; do
        endpoint=${hosts[peer]#*@}
        [[ $endpoint != *:* ]] || endpoint=[$endpoint]
        [ "$peer" != "$1" ] || continue
        printf '\n[Peer]\nPublicKey = %s\n' "${keys[peer]}"
        printf 'AllowedIPs = %s/32\nEndpoint = %s\n' "${addresses[peer]}" "$endpoint:$port"
    done
}

down='' network=10.98.0 port=51820 words=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit ;;
        --down) down=yes ;;
        --network=*) network=${1#*=} ;;
        --port=*) port=${1#*=} ;;
        --network | --port)
            printf -v "${1#--}" %s "${2:-}"
            shift $(($# > 1))
            ;;
        -*) fail "unknown option $1; --help lists them" ;;
        *) words+=("$1") ;;
    esac
    shift
done
[ ${#words[@]} = 1 ] || fail "HOSTS is missing: launch/wireguard.sh a,b,c; --help says more"
if [ -f "${words[0]}" ]; then text=$(sed 's/#.*//' "${words[0]}"); else text=${words[0]//,/ }; fi
read -rd '' -a hosts <<<"$text"
for host in "${hosts[@]}"; do
    [[ $host =~ ^([^@:/=-][^@:/=]*@)?([0-9A-Za-z_][0-9A-Za-z._-]*|[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$ ]] ||
        fail "'$host' is neither a file nor a host, as in a,b,c or user@a"
done
count=${#hosts[@]}
((count > 0 && count < 255)) || fail "there have to be 1 to 254 hosts in ${words[0]}, and there are $count"
[ "$(printf '%s\n' "${hosts[@]#*@}" | sort -u | wc -l)" = "$count" ] || fail "a host is named twice in ${words[0]}"
byte='(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])'
[[ $network =~ ^$byte\.$byte\.$byte$ ]] || fail "--network must be three numbers as 10.98.0, got '$network'"
[[ $port =~ ^[1-9][0-9]{0,4}$ && $port -le 65535 ]] || fail "--port must be a number from 1 to 65535, got '$port'"
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes -o ConnectTimeout=10}"

if [ "$down" ]; then
    for host in "${hosts[@]}"; do on "$host" down </dev/null; done
    exit
fi
addresses=() keys=() members=()
for index in "${!hosts[@]}"; do
    addresses+=("$network.$((index + 1))")
    members+=("${hosts[index]}=${addresses[index]}")
    keys+=("$(on "${hosts[index]}" key </dev/null)") || exit
    [[ ${keys[index]} =~ ^[A-Za-z0-9+/]{43}=$ ]] || fail "${hosts[index]} gives no public key, but '${keys[index]}'"
done
for index in "${!hosts[@]}"; do on "${hosts[index]}" up < <(interface "$index"); done
for host in "${hosts[@]}"; do on "$host" check "${addresses[@]}" </dev/null; done
(IFS=, && echo "${members[*]}")
