# shellcheck shell=bash
# What comes from outside (an object of a bucket, a setting, a host's answer) is data: it is parsed here before it is used.
# `(( ))` would execute a subscript in it, and take 010 for eight.

# Prints a whole number without its leading zeros. Returns 1 for anything else, and for more than 15 digits.
whole() { # TEXT
    [[ $1 =~ ^0*([0-9]{1,15})$ ]] && printf '%s' "${BASH_REMATCH[1]}"
}

# Prints the minutes that a run has had machines, by a sign of life (RUN MINUTES TIME): 0 if it is another run's, or if there
# is none. Returns 1 if the text is no such sign.
minutes_in() { # TEXT RUN
    local number=0
    if [[ $1 ]]; then
        [[ $1 =~ ^([0-9a-f]{12})\ ([0-9]+)(\ [^[:space:]]+)?$ ]] || return 1
        [[ ${BASH_REMATCH[1]} != "$2" ]] || number=${BASH_REMATCH[2]}
    fi
    whole "$number"
}

# Whether a text is gs://BUCKET/PATH: no folder that leads out of it, nothing that gcloud or a browser takes for a pattern, a
# generation or a query.
is_place() { # TEXT
    ((${#1} < 1100)) && [[ $1 =~ ^gs://[a-z0-9][a-z0-9._-]*(/[^/]+)*/?$ && $1/ != */./* && $1/ != */../* && $1 != *[[:cntrl:]\\?#*[]* ]]
}

# The beginning of stdin, of which the rest is read, too: whoever writes it is not to fail. No NUL, which bash cannot hold.
beginning() { # -> at most 1,000 bytes
    head -c 1000 | tr -d '\0'
    cat >/dev/null
}

# gcloud's rsync from a bucket takes `..` in the name of an object for the folder above, and writes there (528 did). It reads
# the patterns between bars one by one.
# shellcheck disable=SC2034
NOT_OUTSIDE='([\s\S]*/)?[.][.]?/|([\s\S]*/)?[.][.]?$'
