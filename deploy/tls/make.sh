#!/bin/sh
# Makes what the profile tls needs, in deploy/tls/made: a certificate authority, the broker's certificate for the names
# given (default: kafka-tls localhost), one user a role with a random password, and the broker's JAAS file.
# Files that are there already are kept, so running it twice changes nothing. Needs openssl.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p made
cd made
names="${*:-kafka-tls localhost}"
first=${names%% *}

if [ ! -f ca.pem ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -days 3650 \
        -subj "/CN=rods certificate authority"
fi
if [ ! -f kafka.pem ]; then
    sans=""
    for name in $names; do sans="$sans,DNS:$name"; done
    printf 'subjectAltName=%s\n' "${sans#,}" > extensions
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout kafka.key -out kafka.csr -subj "/CN=$first"
    openssl x509 -req -in kafka.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -out kafka.crt -extfile extensions
    openssl pkcs8 -topk8 -nocrypt -in kafka.key -out kafka.p8
    cat kafka.p8 kafka.crt ca.pem > kafka.pem
fi
if [ ! -f jaas.conf ]; then
    {
        echo 'secure.KafkaServer {'
        echo '    org.apache.kafka.common.security.plain.PlainLoginModule required'
        for role in admin trainer worker synthesizer archiver observer; do
            [ -f "$role.password" ] || openssl rand -hex 24 > "$role.password"
            printf '    user_%s="%s"\n' "$role" "$(cat "$role.password")"
        done
        echo '    ;'
        echo '};'
    } > jaas.conf
fi
# A container's process must be able to read its own secrets.
chmod 644 ca.pem kafka.pem jaas.conf
echo "made in $(pwd): ca.pem for clients, <role>.password for each of them"
