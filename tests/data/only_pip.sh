#!/bin/sh
[ "$1" = -m ] || exec true
shift 2
echo "$@" >>"$PIP_LOG"
sleep ${PIP_SLEEP:-0}
exit ${PIP_STATUS:-0}
