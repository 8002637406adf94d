"""What a run leaves behind and how it is read: metrics writers, run reader, tables, plots, HTML
report.
"""
