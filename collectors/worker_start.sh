#!/bin/sh
# Starts the worker, the ZIP archive after this script, with a Python that can run it.
# TREEHAMMER_PYTHONS: interpreters and folders of views to try first, separated by colons.
# Exit code 78 if there is none, with a sentence on standard error.
# Debian's python3-minimal has none of these, a Python of one's own often not all.
modules="ctypes, ssl, zlib"
newer=python3.19:python3.18:python3.17:python3.16:python3.15:python3.14:python3.13:python3.12
names=python3:$newer:python3.11:python3.10:python3.9:/usr/libexec/platform-python
IFS=:
newline='
'
found=
missing=
for place in ${TREEHAMMER_PYTHONS-} $names; do
  python=$place
  libraries=${LD_LIBRARY_PATH-}
  if [ -d "$place" ]; then # a view, whose Python may need its libraries
    python=$place/bin/python3
    libraries=$place/lib${libraries:+:$libraries}
  fi
  version=$(
    [ -z "$libraries" ] || export LD_LIBRARY_PATH="$libraries"
    exec "$python" -ES -c "import sys; print('%d.%d.%d' % sys.version_info[:3]); import $modules" 2>/dev/null
  ) || version=${version:+"$version without one of $modules"}
  version=${version##*"$newline"} # a wrapper may have printed more
  case $version in
    *without*) found="$found$python is $version, " ;;
    3.9.* | 3.[1-9][0-9]*.*)
      [ -z "$libraries" ] || export LD_LIBRARY_PATH="$libraries"
      exec "$python" -E "$0" "$@" # such as PYTHONHOME of another Python
      ;;
    "") case $place in python3.*) ;; *) missing="$missing, $place" ;; esac ;;
    *) found="$found$python is $version, " ;;
  esac
done
site=$(sed -n '/^ "site": "/{s/.*: "\([^"]*\)".*/\1/p;q;}' job.json 2>/dev/null)
echo "${site:+$site: }the node lacks Python 3.9 or later (${found}not found:" \
  "python3.9 to python3.19$missing): install one on the nodes, or name one by python or python_views in" \
  "[sites.${site:-SITE}] of sites.toml." >&2
exit 78
