#!/usr/bin/env bash
# A psruntime job on several machines, by ssh: launch/ssh.sh HOSTS [options] [flags of psruntime task]
#
#     launch/ssh.sh a,b,c --ps 2 --model my_model --train-steps 100000 --checkpoint-dir /mnt/run1
#
# HOSTS is a list with commas, or a file with hosts and comments after #.  A host is [USER@]NAME, with the name by which
# the machines reach each other, or [USER@]NAME=ADDRESS, with the address at which they do, as launch/wireguard.sh prints
# it.  All flags but these are for `psruntime task`, the same for every process:
#
#     --ps N                  number of ps, dealt to the hosts in turn (default: 1)
#     --workers N             number of workers, dealt in the same way (default: one for each host)
#     --coordinator-port N    of ps 0 (default: 2222); every other port is any
#
# The job has TLS and a token: the script makes certificates for a year, sends each machine its own over ssh, into a folder
# that the user alone can read, and removes them at the end.  With --insecure, or --tls-ca, --tls-cert and --tls-key of
# yours, it makes none.  `psruntime status` and others need the variables of a file that the script names.
#
# From the environment:
#
#     SSH         the client with its options (default: ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15)
#     PSRUNTIME   the command on the machines (default: psruntime), such as /opt/job/bin/psruntime
#     DIR         the folder there in which it runs (default: the path of this one)
#
# A process that crashes is started again.  The first signal (Ctrl-C) stops the job in good order, with a last checkpoint,
# the second one ends all processes at once.  None outlives this script, whatever becomes of it or of the network.
# The code is 0 when the job is done, that of the process that failed, or 128 + N after signal N.
# bash 4.4 or newer is needed here and on the machines.

set -u
SILENT_S=60 # after which a process stops in good order: it has lost this script
ALIVE_S=15  # between two signs of life to it
FIRST_S=60  # an ssh that fails so soon after a first start has never reached its host; later it was cut off

# On a machine: runs "${@:3}" in the folder $2.  If $1 is not empty, its stdin begins with the files of TLS and the token,
# one a line.  Then "stop", the end and silence end the lifeline of the process, which counts as a SIGTERM there, and
# "kill" ends it at once.  The code of ssh is that of the process: a job, since bash may wait for ever for a process
# substitution that has ended at once.
# shellcheck disable=SC2016
REMOTE='
exec 3<&0
at=
trap "end" EXIT
end() { [ -z "$at" ] || rm -rf "$at"; }
if [ "$1" ]; then
    at=/dev/shm
    [ -w "$at" ] || at=${TMPDIR:-/tmp}
    at=$(mktemp -d "$at/psruntime.XXXXXX") || exit 2
    umask=$(umask)
    umask 077
    for file in ca.pem cert.pem key.pem token; do
        read -r text <&3 || exit
        printf %s "$text" | base64 -d >"$at/$file" || exit 2
    done
    umask "$umask"
    export PSRUNTIME_TLS_CA=$at/ca.pem PSRUNTIME_TLS_CERT=$at/cert.pem PSRUNTIME_TLS_KEY=$at/key.pem
    export PSRUNTIME_TOKEN_FILE=$at/token
fi
cd -- "$2" 2>/dev/null || { echo "there is no folder $2 on this machine; DIR names another" >&2; exit 2; }
shift 2
(
    process=$BASHPID
    exec "$@" < <(
        exec 2>/dev/null
        while read -rt '$SILENT_S' word <&3 && [ "$word" = alive ]; do :; done
        [ "$word" = kill ] || exec >&- # before the kill, it would end by itself
        while [ "$word" != kill ]; do read -r word <&3 || exit; done
        kill -KILL "$process"
    ) 3<&-
) &
exec 3<&-
wait "$!"
'

# Here: each process has a pipe to the stdin of its ssh, and nobody but this script holds the end that is written to.

say() { echo "launch/ssh.sh: $1" >&2; }

fail() {
    say "$1"
    exit 2
}

addresses() { # COUNT PORT: of so many processes, the first with this port
    local index host list=
    for ((index = 0; index < $1; index++)); do
        host=${members[index % ${#members[@]}]}
        [[ $host != *:* ]] || host=[$host]
        list+=${list:+,}$host:$((index ? 0 : $2))
    done
    echo "$list"
}

quoted() { printf "'%s' " "${@//\'/\'\\\'\'}"; } # WORD...: for any shell

plan() { # ROLE COUNT
    local index words shown
    for ((index = 0; index < $2; index++)); do
        names+=("$1-$index")
        places+=("${targets[index % ${#targets[@]}]}")
        certificates+=("${members[index % ${#members[@]}]%%%*}")
        words=("${task[@]}" --role "$1" --index "$index" "${flags[@]}")
        commands+=("exec bash -c '$REMOTE' bash $(quoted "$secured" "$folder" "${words[@]}")")
        printf -v shown ' %q' "${words[@]}"
        say "$1-$index on ${places[-1]}:${shown//\\,/,}"
    done
}

make_secrets() { # certificates of all members and a token, in $secrets, which the user alone can read
    local index own place=/dev/shm
    local -A hosts=() # of a member: what its certificate is for
    [ -w "$place" ] || place=${TMPDIR:-/tmp}
    secrets=$(mktemp -d "$place/psruntime.XXXXXX") || fail "no folder can be made in $place"
    trap 'rm -rf "$secrets"' EXIT
    # shellcheck disable=SC2034
    exec {guard}> >(exec >/dev/null 2>&1 && trap '' INT TERM HUP && cat; rm -rf "$secrets") # if this script is killed
    for index in "${!members[@]}"; do
        own=${members[index]%%%*}
        hosts[$own]=$own
        [ "$own" = "${targets[index]#*@}" ] || hosts[$own]+=,${targets[index]#*@}
    done
    "$(dirname "$(readlink -f "$0")")/make-certs.sh" "$secrets/certs" "${hosts[@]%%%*}" >/dev/null || exit 2
    rm "$secrets/certs/ca-key.pem" # no other certificate can be made that the job would accept
    (umask 077 && openssl rand -hex 32 >"$secrets/token")
    own=$secrets/certs/${members[0]%%%*}
    printf 'export PSRUNTIME_%s=%q\n' COORDINATOR "${ps_hosts%%,*}" TLS_CA "$own/ca.pem" TLS_CERT "$own/cert.pem" \
        TLS_KEY "$own/key.pem" TOKEN_FILE "$secrets/token" >"$secrets/env"
    say "for psruntime status and others: source $secrets/env"
}

send_secrets() { # MEMBER: what REMOTE reads first
    local file
    [ "$secured" ] || return
    for file in "$secrets/certs/$1"/{ca,cert,key}.pem "$secrets/token"; do base64 -w 0 "$file" && echo; done
}

new_pipe() { # into which $to leads and out of which $from; it has no name
    local path
    path=$(mktemp -u)
    mkfifo -m 600 "$path" || fail "no pipe can be made in ${TMPDIR:-/tmp}"
    exec {to}<>"$path"
    exec {from}<"$path"
    rm "$path"
}

feed() { # FD: passes on what a process is told, and signs of life
    local word
    while read -rt $ALIVE_S word <&"$1" || [ $? -gt 128 ]; do echo "${word:-alive}"; done
}

start() { # PROCESS
    local fd
    new_pipe
    (
        trap '' INT TERM HUP
        set -o pipefail
        for fd in "${lifelines[@]}" "$to"; do exec {fd}>&-; done # else it would not end with this script
        "${ssh[@]}" "${places[$1]}" "${commands[$1]}" < <(
            send_secrets "${certificates[$1]}"
            feed "$from"
        ) 2>&1 | sed -u "s/^/${names[$1]}: /"
        echo "$1 $?" >&"$ends"
    ) &
    exec {from}<&-
    lifelines[$1]=$to
    began[$1]=$SECONDS
}

tell() { # WORD PROCESS...
    local word=$1 process
    shift
    for process in "$@"; do echo "$word" >&"${lifelines[$process]}"; done
}

end_job() { # CODE: ps 0 stops the job, or all stop if it is gone; nothing is started any more
    result=$1
    due=()
    if [ "${lifelines[0]:-}" ]; then tell stop 0; else tell stop "${!lifelines[@]}"; fi
}

on_end() { # PROCESS CODE
    local name=${names[$1]} host=${places[$1]} fd=${lifelines[$1]} lived=$((SECONDS - began[$1]))
    unset "lifelines[$1]"
    exec {fd}>&-
    say "$name on $host ended with $2"
    if [ "$1 $2" = "0 0" ]; then
        result=${result:-0}
        due=()
    elif [ "$result" ]; then # whatever is left cannot do without ps 0
        [ "$1" != 0 ] || tell stop "${!lifelines[@]}"
    elif [ "$2" = 255 ] && [ -z "${pauses[$1]:-}" ] && ((lived < FIRST_S)); then
        say "$host cannot be reached; try: ${ssh[*]} $host true"
        end_job 255
    elif [ "$2" = 126 ] || [ "$2" = 127 ]; then
        say "${psruntime[*]} cannot be run on $host; PSRUNTIME names another command"
        end_job "$2"
    elif [ "$2" = 1 ] || [ "$2" = 2 ]; then
        end_job "$2"
    elif [ "$2" != 0 ]; then
        ((lived < 60)) || pauses[$1]=1
        : "${pauses[$1]:=1}"
        say "$name is started again in ${pauses[$1]} s"
        due[$1]=$((SECONDS + pauses[$1]))
        ((pauses[$1] >= 30)) || pauses[$1]=$((2 * pauses[$1]))
    fi
    if [ "${!lifelines[*]} ${#due[@]}" = "0 0" ]; then tell stop 0; fi # ps 0 need not linger for latecomers
}

on_signal() { # NUMBER
    if ((signalled > 1)); then
        tell kill "${!lifelines[@]}"
    else
        say "stops the job; a second signal ends it at once"
        end_job $((128 + $1))
    fi
}

case ${1:-} in
    -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit ;;
    "" | -*) fail "HOSTS is missing: launch/ssh.sh a,b,c --model my_model; --help says more" ;;
esac
if [ -f "$1" ]; then text=$(sed 's/#.*//' "$1"); else text=${1//,/ }; fi
read -rd '' -a hosts <<<"$text"
[ ${#hosts[@]} -gt 0 ] || fail "there is no host in $1"
name='([0-9A-Za-z_][0-9A-Za-z._-]*|[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.%a-z]*)'
targets=() members=() # of the hosts: for ssh, and for each other
for host in "${hosts[@]}"; do
    [[ $host =~ ^([^@:/=-][^@:/=]*@)?$name(=$name)?$ ]] ||
        fail "'$host' is neither a file nor a host, as in a,b,c or user@a=10.0.0.5"
    targets+=("${host%%=*}")
    members+=("${BASH_REMATCH[4]:-${BASH_REMATCH[2]}}")
done
shift
declare -A numbers=([--ps]=1 [--workers]=${#hosts[@]} [--coordinator-port]=2222)
flags=() secured=yes
while [ $# -gt 0 ]; do
    case $1 in
        --ps=* | --workers=* | --coordinator-port=*) numbers[${1%%=*}]=${1#*=} ;;
        --ps | --workers | --coordinator-port)
            numbers[$1]=${2:-}
            shift $(($# > 1))
            ;;
        --ps-hosts* | --worker-hosts* | --role | --role=* | --index | --index=*)
            fail "leave out $1, which is made of HOSTS"
            ;;
        *)
            case $1 in --insecure | --tls-ca | --tls-ca=*) secured= ;; esac
            flags+=("$1")
            ;;
    esac
    shift
done
for option in "${!numbers[@]}"; do
    [[ ${numbers[$option]} =~ ^[1-9][0-9]{0,4}$ ]] || fail "$option must be a number from 1, got '${numbers[$option]}'"
done

read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15}"
read -ra psruntime <<<"${PSRUNTIME:-psruntime}"
folder=${DIR:-$PWD}
ps_hosts=$(addresses "${numbers[--ps]}" "${numbers[--coordinator-port]}")
task=("${psruntime[@]}" task --lifeline --ps-hosts "$ps_hosts" --worker-hosts "$(addresses "${numbers[--workers]}" 0)")
[ -z "$secured" ] || make_secrets
names=() places=() certificates=() commands=() # of the processes, of which the first is ps 0
plan ps "${numbers[--ps]}"
plan worker "${numbers[--workers]}"

lifelines=() began=() pauses=() due=() # of those that run or will be started again
result=
signals=()
signalled=0
trap 'signals+=(1)' HUP
trap 'signals+=(2)' INT
trap 'signals+=(15)' TERM
new_pipe
ends=$to
ended=$from
for process in "${!names[@]}"; do start "$process"; done
while ((${#lifelines[@]} + ${#due[@]})); do
    if read -rt 1 process code <&"$ended"; then on_end "$process" "$code"; fi
    while ((signalled < ${#signals[@]})); do on_signal "${signals[signalled++]}"; done
    for process in "${!due[@]}"; do
        ((SECONDS < due[process])) || { unset "due[$process]" && start "$process"; }
    done
done
exit "${result:-0}"
