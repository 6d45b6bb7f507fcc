"""`make chaos`: two campaigns of random faults, each resumable, one line per seed.

kills: real training runs of one process group, killed with SIGKILL at random instants and resumed until they are
complete. One seed is one kill: whom it hits and when. The newest committed step must never go back, what is restored
must be what was committed, and the final weights must be those of a run in peace, bit for bit.

stack (bench/chaos/stack): whole jobs from the synthesized manifest, under random schedules of all kinds of faults.
"""
