"""A standby in each worker pod: one process that has imported all that a rank needs and becomes ranks by fork.

A rank that starts anew pays 3.5 s for its imports on the development machine, in each rank of each restart; a fork
takes 0.02 s. The launcher starts a door (door.py) in place of each rank. The door hands what it was started with to the
template (template.py), which forks; the fork becomes the rank (become.py), and the door stands for it: it ends as the
rank ends. Where there is no template, or it refuses, the door turns into an ordinary `python -m trainer`. The
supervisor keeps the template (keeper.py). docs/adr/0015 says why it is a fork and who kills whom.

Importing this package imports nothing: a door starts at every restart.
"""
