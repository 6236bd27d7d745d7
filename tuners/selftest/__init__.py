"""The self-test: checks that a device, its libraries, the kernels and the tuner work on one machine.

The report is for the device's owner, who can send it.

    run.py        the parts, one after another, within a budget of time
    report.py     what the report holds      text.py      the report as plain text
    probe.py      the device                 contract.py  memory, errors, the device's reference
    candidates.py kernel families and libraries, verified
    timing.py     launches, clocks, noise    calls.py     what runs in the device process

The end-to-end tuning needs the database: service/selftest_tuning.py.
"""
