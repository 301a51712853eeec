#!/bin/bash
# `make report HW=x ON=shell` fills the three slots, each with one quoted text, and runs this in the project's folder.
# It measures on this machine. For another one with a copy of the project at the same commit, copy this file to
# clusters/<name>.sh, replace the lines after the slots by these, and use ON=<name>:
#   ssh user@machine "cd labkit && $command" || status=$?
#   ssh user@machine "cd labkit/reports && tar -czf - $profile/records $profile/hosts $profile/telemetry" > "$archive"
set -euo pipefail
command=__COMMAND__
profile=__PROFILE__
archive=__ARCHIVE__
status=0
bash -c "$command" || status=$?
cd "${LABKIT_REPORTS:-reports}"
tar -czf "$archive.new" $(ls -d "$profile"/records "$profile"/hosts "$profile"/telemetry)
mv "$archive.new" "$archive"
exit "$status"
