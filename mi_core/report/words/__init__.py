"""The words of a report.

It draws nothing and knows no page.

    wording     the verdict in words; answers: its texts
    numbers     how numbers look; sides: what the two groups are called, and the terms
    evidence    what attacks say of candidates, and questions beside the verdict; forgetting
"""
