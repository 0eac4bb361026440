"""Foundation of all other rooms: errors, checks, spaces, time series, files, runs, workers.

Independent of hybrid systems and of robots. Nothing here imports another room.
"""
