"""The words of a report.

It draws nothing and knows no page.

    wording     the verdict in words
    numbers     how numbers look
    sentences   all other sentences, by templates; what the two groups are called
"""
