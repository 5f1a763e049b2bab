"""The commands of `psruntime` beside ps, worker, task and run.  `main(argv)` of each module returns its exit code.

They show, steer, measure, plan and export.  Their words come in, tables, JSON, files or pages go out.
`psruntime.cli` finds them by their names.  Start with `status`, the plainest.
"""
