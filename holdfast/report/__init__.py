"""The HTML report: runs' ledgers as one file that needs no network. Charts are plotly's, imported only when drawn."""
