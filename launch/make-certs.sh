#!/usr/bin/env bash
# Certificates for mutual TLS, one for each member of a job, by a CA of their own: launch/make-certs.sh FOLDER [HOST...]
#
#     launch/make-certs.sh certs a,10.0.0.5 b c     makes certs/a, certs/b and certs/c; and the CA, if there is none
#     launch/make-certs.sh --renew certs            makes new certificates and keys of all members, or of HOST...
#     launch/make-certs.sh --new-ca certs           makes a new CA, which signs from then on; members trust both
#     launch/make-certs.sh --drop-old-ca certs      lets members trust the new one alone
#
# The folder of a member has ca.pem, cert.pem and key.pem, for --tls-ca, --tls-cert and --tls-key.  A HOST is a name or an
# address at which the member is called, with more of them after commas; the coordinator's has to be there.  Default:
# localhost,127.0.0.1,::1.  --days N: how long the certificates are good (default: 365); the CA is good for 20 years.
#
# The CA's key is FOLDER/ca-key.pem.  Keep FOLDER where no member runs, and copy to each member its own folder.
# Files are replaced as a whole, and their owner and mode stay, so a running job can read them anew.

set -eu
umask 077 # keys are for their owner alone
CA_DAYS=7300
BACK="1 hour ago" # when certificates begin to be good: clocks of other machines may be slow

fail() {
    echo "launch/make-certs.sh: $1" >&2
    exit 2
}

quiet() { # COMMAND...: its messages are shown only if it fails
    "$@" 2>"$work/messages" && return
    cat "$work/messages" >&2
    fail "openssl refuses, as it says above"
}

put() { # FOLDER FILE...: take the place of those of the same names there, with their owner and mode
    local file there
    for file in "${@:2}"; do
        there=$1/${file##*/}
        [ -e "$there" ] || continue
        chown --reference="$there" "$file" 2>/dev/null || true # of another group, which is not ours
        chmod --reference="$there" "$file"
    done
    mv -f "${@:2}" "$1/"
}

sign() { # KIND KEY CERT DAYS [CA-OPTION...]: a new key, and its certificate
    local begin
    begin=$(date -u -d "$BACK" +%Y%m%d%H%M%SZ)
    quiet openssl req -config "$work/config" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
        -subj "/CN=psruntime $1 $(openssl rand -hex 4)" -keyout "$2" -out "$work/request"
    quiet openssl ca -config "$work/config" -name sign -extensions "$1" -batch -notext -in "$work/request" -out "$3" \
        -startdate "$begin" -days "$4" "${@:5}"
}

configure() { # NAMES: subject alternative names of a member
    cat >"$work/config" <<END
[req]
distinguished_name = name
[name]
[sign]
database = $work/index
new_certs_dir = $work
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[member]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
authorityKeyIdentifier = keyid
subjectAltName = $1
END
}

new_ca() { # its key and certificate, as one file
    configure DNS:none
    sign ca "$work/key" "$work/cert" "$CA_DAYS" -selfsign -keyfile "$work/key"
    cat "$work/key" "$work/cert" >"$work/ca-key.pem"
}

trust() { # FILE: with these CAs, for all members and for those who call them
    local member
    while read -r member; do
        cp "$1" "$work/ca.pem"
        put "$folder/$member" "$work/ca.pem"
    done < <(echo && members)
}

names_of() { # HOST,...: as openssl writes them
    local name names=() all=
    [[ $1 != *[!0-9A-Za-z_.:,-]* ]] || fail "'$1' is neither a name nor an address"
    IFS=, read -ra names <<<"$1"
    for name in "${names[@]}"; do
        case $name in
            "" | -* | .*) fail "'$name' is neither a name nor an address" ;;
            *[!0-9A-Fa-f.:]*:* | *:*[!0-9A-Fa-f.:]*) fail "'$name' is neither a name nor an address" ;;
            *:*) all+=,IP:$name ;;
            *[!0-9.]*) all+=,DNS:$name ;;
            *) all+=,IP:$name ;;
        esac
    done
    [ "$all" ] || fail "a HOST is empty"
    echo "${all#,}"
}

issue() { # MEMBER NAMES: its files, in $work/MEMBER
    mkdir "$work/$1" 2>/dev/null || fail "$1 is named twice"
    configure "$2"
    sign member "$work/$1/key.pem" "$work/$1/cert.pem" "$days" -cert "$ca" -keyfile "$ca"
    cp "$authorities" "$work/$1/ca.pem"
}

members() { # those that have a folder
    local file
    for file in "$folder"/*/cert.pem; do
        [ ! -e "$file" ] || basename "${file%/cert.pem}"
    done
}

action=make days=365 words=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit ;;
        --renew | --new-ca | --drop-old-ca) action=${1#--} ;;
        --days=*) days=${1#*=} ;;
        --days)
            days=${2:-}
            shift $(($# > 1))
            ;;
        -*) fail "unknown option $1; --help lists them" ;;
        *) words+=("$1") ;;
    esac
    shift
done
[ ${#words[@]} -gt 0 ] || fail "FOLDER is missing: launch/make-certs.sh FOLDER [HOST...]; --help says more"
[[ $days =~ ^[1-9][0-9]{0,3}$ && $days -le 3650 ]] || fail "--days must be a number from 1 to 3650, got '$days'"
command -v openssl >/dev/null || fail "openssl is not installed"
folder=${words[0]%/}
hosts=("${words[@]:1}")
for host in "${hosts[@]}"; do names_of "$host" >/dev/null; done
case $action in
    make) [ ${#hosts[@]} -gt 0 ] || hosts=("localhost,127.0.0.1,::1") ;;
    *-ca) [ ${#hosts[@]} = 0 ] || fail "--$action takes no host, it is for all members" ;;
esac
made=
if [ "$action" = make ] && mkdir "$folder" 2>/dev/null; then made=yes; fi
[[ -d $folder && -w $folder ]] || fail "there is no folder $folder in which files can be made"
trap '[ ! -d "${work:-}" ] || rm -rf "$work"; [ ! "$made" ] || rmdir "$folder"' EXIT
work=$(mktemp -d "$folder/.new.XXXXXX")
: >"$work/index"
ca=$folder/ca-key.pem
authorities=$folder/ca.pem
if [ ! -e "$ca" ]; then
    [ ! -e "$authorities" ] || fail "$folder has a CA without its key, ca-key.pem; make another folder"
    [ "$action" = make ] || fail "$folder has no CA; without --$action it is made"
    new_ca
    ca=$work/ca-key.pem
    authorities=$work/cert
elif [[ $action = *make || $action = renew ]] && ! openssl x509 -in "$ca" -noout -checkend $((days * 86400)) >/dev/null; then
    fail "the CA in $folder ends within $days days; --new-ca makes another"
fi
case $action in
    make)
        for host in "${hosts[@]}"; do
            member=${host%%,*}
            [ ! -e "$folder/$member" ] || fail "$folder/$member is there; --renew makes a new certificate of it"
            issue "$member" "$(names_of "$host")"
        done
        if [ ! -e "$folder/ca-key.pem" ]; then
            trust "$authorities"
            put "$folder" "$ca"
            made=
        fi
        for host in "${hosts[@]}"; do
            mv "$work/${host%%,*}" "$folder/"
            echo "made $folder/${host%%,*} for $host, good for $days days"
        done
        ;;
    renew)
        [ ${#hosts[@]} -gt 0 ] || mapfile -t hosts < <(members)
        for host in "${hosts[@]}"; do
            [ -e "$folder/$host/cert.pem" ] || fail "$folder has no member $host"
            text=$(openssl x509 -in "$folder/$host/cert.pem" -noout -ext subjectAltName)
            issue "$host" "$(sed -n 's/ //g; s/IPAddress:/IP:/g; 2p' <<<"$text")"
        done
        for host in "${hosts[@]}"; do
            put "$folder/$host" "$work/$host"/{ca,key,cert}.pem
            echo "renewed $folder/$host, good for $days days"
        done
        ;;
    new-ca)
        new_ca
        cat "$work/cert" "$authorities" >"$work/both"
        trust "$work/both"
        put "$folder" "$work/ca-key.pem" # last, so that each certificate that it signs is one that all folders trust
        echo "made a new CA in $folder; give each member its ca.pem, which has both, before --renew"
        ;;
    drop-old-ca)
        openssl x509 -in "$ca" -out "$work/new"
        while read -r host; do
            openssl verify -CAfile "$work/new" "$folder/$host/cert.pem" >/dev/null 2>&1 ||
                fail "$folder/$host has a certificate of the old CA; --renew makes a new one"
        done < <(members)
        trust "$work/new"
        echo "members trust the new CA alone; give each its ca.pem in $folder"
        ;;
esac
