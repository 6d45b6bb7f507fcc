"""`make chaos`, second campaign: whole jobs, from the synthesized manifest to the last step, under random schedules.

One seed is one job: its size, its layers, and one to four faults, two at once among them. It must end as its faults
allow, with the weights of a job in peace, no commit lost, no process left, and every second of it accounted for.
"""
