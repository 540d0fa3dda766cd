"""Planning: jobs, costs, pacing, credentials, and checks before submission."""

#: Option that names sites to use although their state forbids it.
INCLUDE_OPTION = "--include-excluded"
