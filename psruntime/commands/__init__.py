"""The commands of `psruntime` beside ps, worker, task and run.  `main(argv)` of each module returns its exit code.

They show, steer, measure, plan and export: arguments in; tables, JSON, files or pages out.
`psruntime.cli` finds them by their names.  Start with `status`, the simplest.
"""
