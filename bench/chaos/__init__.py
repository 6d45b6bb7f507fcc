"""`make chaos`: real training runs, killed with SIGKILL at random instants and resumed until they are complete.

One seed is one kill: whom it hits and when. The newest committed step must never go back, what is restored must be what
was committed, and the final weights must be those of a run in peace, bit for bit.
"""
